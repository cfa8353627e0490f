"""The wheel with numpy alone in every Python that it is for, as far as this machine has them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from hora_rl.common.load import ROOT
from tests.support.installed import environment_of, wheel_in

pytestmark = pytest.mark.system
PAGE = ROOT / "docs" / "how-to" / "use-in-another-trainer.md"


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


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_librarys_page_and_examples_are_true_with_the_wheel_and_numpy_alone(
    wheel: Path, tmp_path: Path, version: str
) -> None:
    programs, packages = environment_of(
        tmp_path / "empty", str(wheel), "numpy>=2.0,<3", python=interpreter(version)
    )
    code = (
        "import doctest, importlib.util as u, sys, hora_rl; assert not u.find_spec('pydantic'); "
        f"assert sys.version.startswith('{version}.'); "
        f"assert hora_rl.__file__.startswith({str(packages)!r}); "
        f"found = doctest.testfile({str(PAGE)!r}, module_relative=False); "
        "assert found.attempted > 9 and not found.failed"
    )
    examples = [[str(ROOT / "examples" / f"{name}.py")] for name in ("allocate_alone", "plan_a_run")]
    for words in (["-c", code], *examples):
        command = [str(programs / "python"), "-I", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
