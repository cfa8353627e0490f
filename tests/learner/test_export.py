"""What cannot be exported is one line. What can is compared with the run's model in test_restart."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.load import dump_yaml, load
from hora_rl.deploy.runs.ended_run import export_run
from hora_rl.learner.checkpoints.checkpoint import TAG
from hora_rl.learner.checkpoints.export import _buffers
from hora_rl.learner.checkpoints.manifest import Manifest, digest, make_secret, read_secret
from hora_rl.learner.checkpoints.origin import step_of
from hora_rl.learner.model.loading import load_model
from tests.support.families import glm4_moe, write_model


def run_folder(tmp_path: Path, *steps: int, settings: Sequence[str] = ()) -> Path:
    run = tmp_path / "r"
    run.mkdir()
    (run / "config.yaml").write_text(dump_yaml(load("tiny", settings)))
    for step in steps:
        (run / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    make_secret(run)
    return run


def written(run: Path, step: int, state: object) -> Path:
    """The file of a checkpoint without ZeRO that holds `state`, signed as the learner does it."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    file = folder / TAG / "mp_rank_00_model_states.pt"
    file.parent.mkdir(exist_ok=True)
    torch.save(state, file)
    files = {str(file.relative_to(folder)): digest(file)}
    name = load(str(run / "config.yaml")).run.name
    Manifest(name, step, 1, files).write(folder, read_secret(run))
    return file


class Opens:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.file), "w")


def test_no_run_checkpoint_or_known_step_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(RunError, match=r"nothing: not a run folder"):
        export_run(tmp_path / "nothing", None, out)
    run = run_folder(tmp_path)
    with pytest.raises(RunError, match=r"learner.checkpoint_every"):
        export_run(run, None, out)
    for step in (10, 20):
        (run / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    with pytest.raises(RunError, match="no checkpoint of step 7; there are: 10, 20"):
        export_run(run, 7, out)
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(RunError, match="exists and is not empty"):
        export_run(run, None, out)


@pytest.mark.parametrize("of", ["data", "processor"])
def test_an_exported_model_knows_its_step_and_has_its_own_settings(tmp_path: Path, of: str) -> None:
    model = write_model("bloom", tmp_path / "model")
    settings = [f"model.path={model}"]
    settings += ["data.chat_template='{{ messages }}'"] if of == "data" else []
    if of == "processor":
        tokenizer = load_tokenizer(str(model))
        tokenizer.chat_template = None
        (model / "chat_template.jinja").unlink(missing_ok=True)
        tokenizer.save_pretrained(model)
        (model / "chat_template.json").write_text('{"chat_template": "{{ messages }}"}')
    run = run_folder(tmp_path, 10, 20, settings=settings)
    config = load(str(run / "config.yaml"))
    weights = load_model(config.model, config.learner).state_dict()
    written(run, 10, {"module": {f"hf.{k}": v for k, v in weights.items()}})
    export_run(run, 10, tmp_path / "out")
    assert step_of(str(tmp_path / "out")) == 10
    assert AutoConfig.from_pretrained(tmp_path / "out").use_cache
    assert load_tokenizer(str(tmp_path / "out")).chat_template == "{{ messages }}"
    assert step_of(config.model.path) is None
    (tmp_path / "out" / "hora.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"hora\.json"):
        step_of(str(tmp_path / "out"))


def test_a_strangers_pickle_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    run, proof = run_folder(tmp_path, 10, 20), tmp_path / "it was run"
    torch.load(written(run, 10, Opens(proof)), weights_only=False)
    assert proof.exists(), "what is loaded is run"
    proof.unlink()
    written(run, 20, {"module": {}})
    torch.save(Opens(proof), run / "checkpoints" / "step-00000020" / TAG / "mp_rank_00_model_states.pt")
    with pytest.raises(RunError, match=r"step-00000020: state/mp_rank_00_model_states.pt .*try --step 10"):
        export_run(run, None, tmp_path / "out")
    (run / "secret").write_text("another")
    with pytest.raises(RunError, match=r"manifest.json is not signed with this run's secret; nothing of it"):
        export_run(run, 10, tmp_path / "out")
    (run / "secret").unlink()
    with pytest.raises(RunError, match="without it no checkpoint of this run can be told from a stranger's"):
        export_run(run, 10, tmp_path / "out")
    assert not proof.exists()


def test_a_model_that_is_written_by_its_parameters_computes_the_same_when_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(glm4_moe()).eval()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=3.0)
    parameters = dict(model.named_parameters())
    assert [name.rpartition(".")[2] for name in _buffers(model)] == ["e_score_correction_bias"]
    ids = torch.arange(12)[None]
    wanted = model(input_ids=ids).logits
    for state, same in (({**parameters, **_buffers(model)}, True), (parameters, False)):
        model.save_pretrained(tmp_path / str(same), state_dict=state)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / str(same)).eval()
        assert torch.allclose(loaded(input_ids=ids).logits, wanted, atol=1e-5) is same
