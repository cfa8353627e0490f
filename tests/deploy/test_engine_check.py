"""vLLM itself says, in a process that ends with the checks, whether it takes the model and its arguments."""

import json
import shutil
import time
from pathlib import Path

import psutil
import pytest

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import ROOT, load
from hora_rl.deploy.checks import engine as checked
from hora_rl.deploy.checks.engine import EngineProcess, answer_file, engine
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.run_checks import examine

pytestmark = pytest.mark.system  # it imports vLLM


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No answer is remembered yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hora" / "engines"


def engine_of(*changes: str) -> Finding:
    [finding] = examine(Target(load("tiny", changes)), [engine])
    return finding


def test_the_class_that_would_run_the_model_is_named_and_asked_for_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = engine_of()
    assert (finding.level, finding.says.rpartition(" ")[2]) == ("ok", "Qwen2ForCausalLM")
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(checked, "MODULE", "no_such_module")  # whoever asks again fails
    assert engine_of() == finding
    assert engine_of("learner.steps=3", "run.name=other") == finding, "the engine does not depend on it"


@pytest.mark.parametrize(
    "change",
    [
        "generator.max_sequences=17",
        "model.trust_remote_code=true",
        "rollout.max_response_tokens=33",
        "run.seed=5",
        "generator.engine_args.quantization=fp8",
    ],
)
def test_what_an_engine_depends_on_is_another_question(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answer_file(load("tiny"))
    assert before == answer_file(load("tiny"))
    assert answer_file(load("tiny", [change])) != before
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert answer_file(load("tiny")) != before


def test_a_model_that_changes_in_its_folder_is_another_question(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ROOT / "deploy/demo/model", tmp_path / "other"))
    before = answer_file(load("tiny", [f"model.path={folder}"]))
    file = folder / "config.json"
    file.write_text(file.read_text() + " ")
    assert answer_file(load("tiny", [f"model.path={folder}"])) != before
    file.unlink()
    assert answer_file(load("tiny", [f"model.path={folder}"])) is None


def test_a_model_of_no_known_class_and_arguments_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, cache: Path
) -> None:
    folder = Path(shutil.copytree(ROOT / "deploy/demo/model", tmp_path / "other"))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["OtherForTokens"]}))
    for change, word in (
        (f"model.path={folder}", "OtherForTokens"),
        ("generator.engine_args.quantization=unknown", "unknown"),
        ("generator.engine_args.max_logprob=2", "did you mean max_logprobs?"),
    ):
        finding = engine_of(change)
        assert finding.level == "fail"
        assert not cache.exists(), "a refusal is asked for again"
        assert word in finding.says
        assert not any(noise in finding.line for noise in ("\n", "Traceback", "pydantic", "input_value"))


def test_a_process_that_ends_or_hangs_is_a_finding_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("tiny", [])
    with EngineProcess(Target(config)) as held:
        held._process.kill()
        [finding] = held.engine(Target(config))
    assert (finding.level, "status -9" in finding.says) == ("fail", True)
    monkeypatch.setattr(checked, "ANSWER_S", 0.1)
    began = time.monotonic()
    with EngineProcess(Target(config)) as held:
        [finding] = held.engine(Target(config))
    assert finding.level == "warn"
    assert time.monotonic() - began < 5
    assert not psutil.pid_exists(held._process.pid)


def test_a_cluster_s_engines_are_not_asked_here() -> None:
    assert not list(examine(Target(load("tiny", []), "train"), [engine]))
    with pytest.raises(ConfigError, match="seed"):
        list(engine(Target(load("tiny", ["generator.engine_args.seed=1"]))))
