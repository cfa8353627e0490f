"""Every shell command of the README and of the tutorials is run by a test, or checked as far as a machine of
a test allows. A new command on a page fails here until it has a place."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from allocator import allocate
from common.load import load
from deploy.cli import app
from tests.support.pages import ROOT, Block, blocks, commands

BIN = Path(sys.executable).parent
PAGES = (
    "README.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "tutorial").glob("*.md")),
)
TUTORIAL = "docs/tutorial/your-own-task.md"
"""Every block of this page is run by tests/system/test_tutorial_own_task.py."""
FIRST_RUN = "docs/tutorial/first-run.md"
"""Its `hora` commands are run by tests/system/test_first_run.py."""


def dry(command: str) -> None:
    """`make` prints what it would do. To do it would install the pinned packages and train for minutes; a CI
    job does that from a fresh clone."""
    done = subprocess.run(
        ["make", "-n", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    wanted = {"make demo": "hora run deploy/presets/tiny.yaml", "make test": "pytest -m"}[command]
    assert wanted in done.stdout


def known_options(command: str) -> None:
    """The command and its options exist: to run it takes a model from the hub, or is done elsewhere."""
    words = shlex.split(command.removesuffix("&"))[1:]
    options = [word.split("=")[0] for word in words if word.startswith("-")]
    said = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, [words[0], "--help"])
    assert said.exit_code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said.output)
    assert all(option in plain for option in options), (options, plain)


def of_other_programs(command: str) -> None:
    """Ray's own commands exist. They start a cluster: the tutorial's test runs these on free ports."""
    last = command.strip("()").split(";")[-1].split()
    assert (BIN / last[0]).exists(), last
    tutorial = " ".join(c for b in blocks(TUTORIAL) if b.kind == "sh" for c in commands(b))
    assert " ".join(last[:2]) in tutorial or last[1] == "get-auth-token"


def literal(command: str) -> None:
    """A setting of the shell."""
    assert command in ("export RAY_AUTH_MODE=token",)


HOW: dict[str, Callable[[str], None]] = {
    "make demo": dry,
    "make test": dry,
    ".venv/bin/hora run smollm2": known_options,  # tests/system/test_pretrained_run.py trains its model
    "hora check mine.yaml": known_options,  # its file is checked below, on the demo's model
    "hora run mine.yaml": known_options,  # a model of 1.5B parameters from the hub
    "export RAY_AUTH_MODE=token": literal,
    "(umask 077; ray get-auth-token --generate)": of_other_programs,  # writes into the home folder
    "hora redis ~/hora-redis --port 6380 &": known_options,
    "ray start --head": of_other_programs,
    "serve deploy deploy/hora.yaml": of_other_programs,
    "hora train deploy/hora.yaml": known_options,
    "hora monitor deploy/hora.yaml": known_options,
}


def shell_commands(page: str) -> list[str]:
    return [command for block in blocks(page) if block.kind == "sh" for command in commands(block)]


@pytest.mark.parametrize("command", dict.fromkeys(shell_commands("README.md")))
def test_a_command_of_the_readme_works_as_far_as_it_can_be_tried(command: str) -> None:
    assert command in HOW, f"README.md has a new command: say in HOW how it is checked: {command}"
    HOW[command](command)


def test_no_other_command_is_listed() -> None:
    assert set(HOW) == set(shell_commands("README.md"))


@pytest.mark.parametrize("page", PAGES)
def test_a_block_of_a_page_has_a_kind_that_is_run_or_is_a_picture(page: str) -> None:
    """`sh` and `python` are run. A block without a kind is what a program prints, or a drawing."""
    assert {block.kind for block in blocks(page)} <= {"sh", "python", "yaml", ""}
    unlabelled = [b.text for b in blocks(page) if not b.kind]
    assert not [text for text in unlabelled if re.match(r"(\$ )?(hora|make|ray|serve|python|pip) ", text)]
    assert page in ("README.md", TUTORIAL, FIRST_RUN), "a new tutorial: which test runs its blocks?"


@pytest.mark.parametrize(
    "block", [b for p in PAGES for b in blocks(p) if b.kind == "sh"], ids=lambda b: b.name
)
def test_a_shell_block_is_written_without_mistakes(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


@pytest.mark.system
def test_the_configuration_of_the_readme_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the demo's model in the place of the hub's, its rows are read."""
    (block,) = [b for b in blocks("README.md") if b.kind == "yaml"]
    (tmp_path / "mine.yaml").write_text(block.text)
    row = '{"problem": "1+1=?", "answer": "2"}\n'
    (tmp_path / "problems.jsonl").write_text(row * 60)
    (tmp_path / "held-out.jsonl").write_text(row.replace("1+1", "2+0"))
    monkeypatch.chdir(tmp_path)
    assert load("mine.yaml").model.path == yaml.safe_load(block.text)["model"]["path"]
    demo = ["model.path=deploy/demo/model", "model.dtype=float32", "data.system=null"]
    limits = ["rollout.max_prompt_tokens=32", "rollout.max_response_tokens=64"]
    words = [w for setting in (*demo, *limits) for w in ("-s", setting)]
    done = CliRunner().invoke(app, ["check", "mine.yaml", "--elsewhere", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "valid. 60 prompts" in done.output


def test_the_python_of_the_readme_divides_as_it_says() -> None:
    (block,) = [b for b in blocks("README.md") if b.kind == "python"]
    names: dict = {}
    exec(block.text, names)
    call = re.search(r"allocate\((.*?)\)  # Δ_i of each prompt, summing to (\d+)", block.text)
    assert call is not None
    assert names["allocate"] is allocate
    given = allocate(successes=[0, 3, 8], trials=8, budget=72)
    assert call[1] == "successes=[0, 3, 8], trials=8, budget=72"
    assert int(np.sum(given)) == int(call[2])
