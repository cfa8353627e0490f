"""One module under both names, and wheels whose folders are in `hora_rl`."""

import ast
import importlib
import re
import subprocess
import sys

import pytest

from common.config import Config
from common.load import ROOT
from hora_rl import build
from hora_rl.names import OURS

CODE = re.compile(
    rf"^(from ({'|'.join(OURS)})[\w.]* import |import ({'|'.join(OURS)})[\w.]*(;|$))", re.MULTILINE
)
"""A docstring that shows an import has paragraphs; code in a string has not."""
MODULE = re.compile(rf"({'|'.join(OURS)})(\.\w+)+")


def test_a_module_has_two_names_and_is_loaded_once() -> None:
    ours, theirs = importlib.import_module("hora_rl.common.errors"), importlib.import_module("common.errors")
    assert ours is theirs
    assert ours.__spec__ is not None
    assert ours.__spec__.name == "common.errors"
    with pytest.raises(ModuleNotFoundError, match=r"hora_rl\.common\.none"):
        importlib.import_module("hora_rl.common.none")


def test_a_module_is_run_under_either_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hora_rl.deploy.cli", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_what_builds_a_wheel_knows_the_same_folders_and_needs_setuptools_alone() -> None:
    """As pip's isolated build runs it: neither the checkout nor an installed HORA can be imported."""
    load = f"import runpy; print(*runpy.run_path({str(ROOT / 'hora_rl' / 'build.py')!r})['OURS'])"
    barred = "import sys; sys.modules['hora_rl'] = None; "
    done = subprocess.run(
        [sys.executable, "-I", "-c", barred + load], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert tuple(done.stdout.split()) == OURS


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from common.types import Group", "from hora_rl.common.types import Group"),
        ("if True:\n    from  deploy import app", "if True:\n    from  hora_rl.deploy import app"),
        ("import common", "import hora_rl.common as common"),
        ("import os, common.keys as keys", "import os, hora_rl.common.keys as keys"),
        ("x = 'ü'; import common", "x = 'ü'; import hora_rl.common as common"),
        ("from commonplace import common", "from commonplace import common"),
        ("from .common import deploy", "from .common import deploy"),
        ("text = 'from common.types import Group'", "text = 'from common.types import Group'"),
    ],
)
def test_imports_are_renamed_and_nothing_else(before: str, after: str) -> None:
    assert build.renamed(before) == after


def test_an_import_that_would_bind_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"here\.py:2: import common\.keys"):
        build.renamed("\nimport common.keys", "here.py")


def test_every_file_of_ours_is_renamed_and_none_names_a_module_in_a_string() -> None:
    """A name in a string stays as it is in a wheel, and would find the user's module there."""
    for name in (*OURS, "hora_rl"):
        for file in (ROOT / name).rglob("*.py"):
            source = file.read_text()
            renamed = ast.parse(build.renamed(source, str(file)))
            imports = [n for n in ast.walk(renamed) if isinstance(n, ast.ImportFrom) and not n.level]
            assert not [n for n in imports if (n.module or "").partition(".")[0] in OURS], file
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not _names_a_module(node.value), f"{file}:{node.lineno}: {node.value}"


def _names_a_module(text: str) -> bool:
    """Whether `text` is one of our files' dotted name, with a name in it or without, or code that imports
    one."""
    if CODE.search(text) and "\n\n" not in text:
        return True
    dotted = text.partition(":")[0]
    top, _, key = dotted.partition(".")
    section = Config.model_fields.get(top)
    if not MODULE.fullmatch(dotted) or (section and key.partition(".")[0] in section.annotation.model_fields):
        return False
    path = ROOT / dotted.replace(".", "/")
    return any(p.with_suffix(".py").is_file() for p in (path, path.parent))
