"""The whole stack trains an adapter: vLLM serves it, it alone travels, both it and the model are written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hora_rl.common.load import load
from hora_rl.common.weights.adapter_names import WEIGHTS
from hora_rl.common.weights.adapters import check_base
from hora_rl.deploy.runs.audit_run import audit_run
from hora_rl.deploy.runs.export_run import export_run
from hora_rl.learner.engine import load_model
from hora_rl.learner.lora import merge
from tests.support.jsonl import lines
from tests.support.small_run import GROUP, PROMPTS, STEPS, hora

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]
LORA = ("learner.lora.rank=8", "learner.lora.alpha=16", "learner.optimizer.learning_rate=0.001")


@pytest.fixture(scope="module", params=["file", pytest.param("gloo", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    settings = (*LORA, "learner.objective.kl=0.01", f"weights.transport={request.param}")
    result = hora(folder, *(part for setting in settings for part in ("-s", setting)))
    assert result.returncode == 0, result.stdout + result.stderr
    return folder / "runs" / "loop"


def test_every_group_is_trained_once_on_the_versions_that_it_names(run: Path) -> None:
    groups = lines(run / "groups.jsonl")
    assert len({g["group_id"] for g in groups}) == STEPS * PROMPTS
    assert sum(g["size"] for g in groups) == STEPS * PROMPTS * GROUP
    assert max(g["version_max"] for g in groups) >= 1
    assert audit_run(run)


def test_drift_is_as_small_as_for_full_weights_and_the_policy_moves(run: Path) -> None:
    steps = lines(run / "steps.jsonl")
    assert [s["step"] for s in steps] == list(range(STEPS))
    measured = [s["drift"] for s in steps[1:] if "drift" in s]
    assert measured, "on weights that an update brought"
    assert all(drift < 1e-4 for drift in measured)
    assert all(s["grad_norm"] > 0 for s in steps)


def test_an_update_is_the_adapter_alone(run: Path) -> None:
    adapter = load_file(run / "adapter" / WEIGHTS)
    size = sum(t.nbytes for t in adapter.values())
    assert {s["weights/bytes"] for s in lines(run / "steps.jsonl")} == {float(size)}
    full = sum(t.nbytes for t in load_file(run / "model" / "model.safetensors").values())
    assert size < full / 8, "rank 8 of width 128; of width 3584 it is below a hundredth"


def test_the_model_is_its_base_with_the_adapter_and_any_checkpoint_gives_both(
    run: Path, tmp_path: Path
) -> None:
    config = load(str(run / "config.yaml"))
    assert config.learner.lora is not None
    base = load_model(config.model, config.learner)
    before = {name: p.clone() for name, p in base.named_parameters()}
    merge(base, load_file(run / "adapter" / WEIGHTS), config.learner.lora.scale)
    model = load_file(run / "model" / "model.safetensors")
    assert all(torch.equal(p, model[name]) for name, p in base.named_parameters() if name in model)
    assert any(not torch.equal(p, before[name]) for name, p in base.named_parameters())
    assert "the adapter after step 4" in export_run(run, None, tmp_path / "adapter", adapter=True)
    export_run(run, None, tmp_path / "merged")
    same = (("adapter", WEIGHTS, run / "adapter"), ("merged", "model.safetensors", run / "model"))
    for name, file, own in same:
        found, wanted = load_file(tmp_path / name / file), load_file(own / file)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[n], wanted[n]) for n in wanted)
    check_base(load("tiny", [f"model.adapter={run / 'adapter'}"]).model)


@pytest.mark.slow
def test_the_adapter_and_the_merged_model_are_evaluated(run: Path, tmp_path: Path) -> None:
    """In float32 both give the same samples but for rounding; half as many equal ones prove it is served."""
    rows = [{"problem": f"{a}+{b}=?", "answer": str(a + b)} for a, b in ((1, 2), (3, 4), (12, 5), (7, 8))]
    problems = tmp_path / "sums.jsonl"
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {}
    for name in ("adapter", "model"):
        out = tmp_path / name
        command = [str(Path(sys.executable).with_name("hora")), "eval", str(run / name)]
        command += ["--benchmark", str(problems), "--samples", "8", "--k", "1,4", "--out", str(out)]
        command += ["-s", "telemetry.http_port=0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        [file] = out.glob("*-step4.samples.jsonl")
        _, *samples = (json.loads(line) for line in file.read_text().splitlines())
        found[name] = {(s["problem"], s["sample"]): s["text"] for s in samples}
    assert len(found["adapter"]) == len(found["model"]) == 4 * 8
    equal = sum(text == found["model"][key] for key, text in found["adapter"].items())
    assert equal >= 16, (equal, found)
