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
from hora_rl.deploy.checks.engine import AskedEngine, engine
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.run_checks import examine

pytestmark = pytest.mark.system  # it imports vLLM


def asked(*changes: str) -> Finding:
    [found] = examine(Target(load("tiny", changes)), [engine])
    return found


def test_the_class_that_would_run_the_model_is_named() -> None:
    found = asked()
    assert (found.level, found.says.rpartition(" ")[2]) == ("ok", "Qwen2ForCausalLM")


def test_a_model_of_no_known_class_and_arguments_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path,
) -> None:
    folder = Path(shutil.copytree(ROOT / "deploy/demo/model", tmp_path / "other"))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": ["OtherForTokens"]}))
    for change, word in (
        (f"model.path={folder}", "OtherForTokens"),
        ("generator.engine_args.quantization=unknown", "unknown"),
        ("generator.engine_args.max_logprob=2", "did you mean max_logprobs?"),
    ):
        found = asked(change)
        assert found.level == "fail"
        assert word in found.says
        assert not any(noise in found.line for noise in ("\n", "Traceback", "pydantic", "input_value"))


def test_a_process_that_ends_or_hangs_is_a_finding_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("tiny", [])
    with AskedEngine(Target(config)) as held:
        held._process.kill()
        [found] = held.engine(Target(config))
    assert (found.level, "status -9" in found.says) == ("fail", True)
    monkeypatch.setattr(checked, "ANSWER_S", 0.1)
    began = time.monotonic()
    with AskedEngine(Target(config)) as held:
        [found] = held.engine(Target(config))
    assert found.level == "warn"
    assert time.monotonic() - began < 5
    assert not psutil.pid_exists(held._process.pid)


def test_a_cluster_s_engines_are_not_asked_here() -> None:
    assert not list(examine(Target(load("tiny", []), "train"), [engine]))
    with pytest.raises(ConfigError, match="HORA sets this argument"):
        list(engine(Target(load("tiny", ["generator.engine_args.seed=1"]))))
