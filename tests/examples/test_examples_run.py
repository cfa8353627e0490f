"""The scripts and the notebook of examples/, run as a user runs them, and the wheel with numpy alone in every
Python that it is for, as far as this machine has them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

import hora_rl
from hora_rl import runs as module
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import ROOT
from hora_rl.evaluation.run_folders import RunFolderError
from tests.support.installed import environment_of, wheel_in
from tests.support.programs import run_well

PAGE = ROOT / "docs" / "how-to" / "use-in-another-trainer.md"
NOTEBOOK = ROOT / "examples" / "allocation.ipynb"


def python(*words: str, limit_s: float = 60.0) -> str:
    """Standard output of `python WORDS` in the checkout."""
    return run_well(sys.executable, *words, cwd=ROOT, limit_s=limit_s, COLUMNS="120").stdout


@pytest.mark.system
def test_a_plan_recommends_a_rule_that_finds_more_than_uniform() -> None:
    verdict, most, *_ = python("-m", "examples.plan_a_run").splitlines()
    assert verdict.startswith("Verdict: use it")
    rule, _, rest = most.partition(" at G = 32 equals uniform sampling at G ")
    assert rule != "Most hits: uniform"
    assert rest.startswith("beyond") or int(rest.split()[0]) > 32


def test_the_notebook_runs_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code cells one after the other in one namespace; a last expression's value is not looked at."""
    monkeypatch.setattr(mpl, "get_backend", lambda: "agg")
    mpl.use("agg")
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    space: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), space)  # the notebook is ours
    assert space["extra"][0] > space["extra"][-1]
    uniform, hora, rounds = space["shares"].values()
    assert uniform < hora < rounds


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_from_python_trains_and_is_read_as_data_frames(tmp_path: Path) -> None:
    out = python("-m", "examples.run_from_python", str(tmp_path), limit_s=500.0)
    assert "Phase B rollouts of a prompt" in out
    found = hora_rl.results(tmp_path / "from-python")
    assert found.steps["step"].tolist() == [0, 1, 2]
    assert len(found.groups) == 3 * 8
    assert sorted(set(found.evaluations["step"])) == [0, 3]
    rollouts = found.rollouts()
    assert len(rollouts) == found.steps["rollouts"].sum() == 3 * 8 * 16
    assert set(found.rollouts(success=True)["step"]) <= {0, 1, 2}


def test_changes_have_their_types_and_a_wrong_key_is_refused(tmp_path: Path) -> None:
    changes = {"evaluation.k": [1, 2], "evaluation.samples": 2, "evaluation.path": None, "run.name": "7"}
    more = {"allocation.warmup.enabled": False, "learner.optimizer.learning_rate": 1e-5}
    config = hora_rl.configure("tiny", changes | more)
    assert (config.evaluation.k, config.evaluation.path, config.run.name) == ((1, 2), None, "7")
    assert config.allocation.warmup.enabled is False
    assert config.learner.optimizer.learning_rate == 1e-5
    with pytest.raises(ConfigError, match="group_sise: unknown key; did you mean group_size"):
        hora_rl.configure("tiny", {"rollout.group_sise": 3})
    with pytest.raises(RunFolderError, match="no run here"):
        hora_rl.results(tmp_path)


@pytest.mark.system
def test_a_run_that_fails_is_an_error_in_python(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    changes = {"run.folder": str(tmp_path), "data.path": str(tmp_path / "none.jsonl")}
    config = hora_rl.configure("tiny", changes)
    with pytest.raises(module.RunError, match="ended with status 1"):
        hora_rl.run(config)
    assert "none.jsonl" in capfd.readouterr().err


def test_the_package_loads_nothing_until_it_is_asked() -> None:
    code = "import sys, hora_rl; assert not {'pydantic', 'numpy', 'typer'} & set(sys.modules), sys.modules"
    python("-c", code)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_in(tmp_path_factory.mktemp("wheel"))


def interpreter(version: str) -> str:
    """A `pythonX.Y` that starts: on PATH, where pyenv's shims may refuse, or one of pyenv's."""
    own = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for python in filter(None, (shutil.which(f"python{version}"), *own)):
        if subprocess.run([python, "-c", ""], capture_output=True, timeout=60).returncode == 0:
            return str(python)
    pytest.skip(f"no Python {version} here")


@pytest.mark.system
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_librarys_page_and_examples_are_true_with_the_wheel_and_numpy_alone(
    wheel: Path, tmp_path: Path, version: str
) -> None:
    python = interpreter(version)
    programs, packages = environment_of(tmp_path / "empty", str(wheel), "numpy>=2.0,<3", python=python)
    code = (
        "import doctest, importlib.util as u, sys, hora_rl; assert not u.find_spec('pydantic'); "
        f"assert sys.version.startswith('{version}.'); "
        f"assert hora_rl.__file__.startswith({str(packages)!r}); "
        f"found = doctest.testfile({str(PAGE)!r}, module_relative=False); "
        "assert found.attempted > 9 and not found.failed"
    )
    examples = [[str(ROOT / "examples" / f"{name}.py")] for name in ("allocate_alone", "plan_a_run")]
    for words in (["-c", code], *examples):
        run_well(programs / "python", "-I", *words, cwd=tmp_path, limit_s=100)
