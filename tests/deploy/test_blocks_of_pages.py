"""The code of the pages runs, on the smallest thing that stands for a reader's own, and every configuration
passes `hora check` with the demo's model."""

import asyncio
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import matplotlib
import pytest
import yaml
from typer.testing import CliRunner

import hora_rl
from hora_rl.common.config import Config
from hora_rl.common.data import layouts
from hora_rl.common.errors import Unavailable
from hora_rl.common.load import load
from hora_rl.deploy.cli import app
from hora_rl.deploy.machine.record import write_config
from tests.support.jsonl import write_lines
from tests.support.pages import ROOT, Block, blocks, commands
from tests.support.rollouts import write_rollouts

PAGES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))


def of(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.kind in ("sh", "python", "json")]


def names_of(block: Block, **given: Any) -> dict[str, Any]:
    """What a reader has after running it, who has `given` already."""
    exec(compile(block.text, block.name, "exec"), given)
    return given


@pytest.mark.parametrize(
    "block", [b for p in ("README.md", *PAGES) for b in blocks(p) if b.kind == "sh"], ids=lambda b: b.name
)
def test_a_shell_block_is_written_without_mistakes(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_the_python_of_the_readme_divides_as_it_says() -> None:
    (block,) = [b for b in blocks("README.md") if b.kind == "python"]
    [call] = [line.partition("  #")[0] for line in block.text.splitlines() if "budget=72" in line]
    assert sum(eval(call, names_of(block))) == 72


@pytest.mark.system
def test_rollouts_are_read_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rollouts(Path("runs/tiny"), steps=13, prompts=8)
    shell, filtered, plain, _ = of("docs/how-to/watch-a-run.md")
    results = [CliRunner(env={"COLUMNS": "200"}).invoke(app, c.split()[1:]) for c in commands(shell)]
    assert {done.exit_code for done in results} == {0}, [done.output for done in results]
    assert all(json.loads(line)["success"] for line in results[-1].output.splitlines())
    frame = names_of(filtered)["frame"]
    assert len(frame) == 20
    assert not frame["success"].any()
    assert names_of(plain)["frame"].groupby("step")["success"].mean().tolist() == [0.5] * 13


@pytest.mark.system
def test_a_run_from_python_is_configured_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run itself is that of examples/run_from_python.py, which tests/examples runs."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    *_, block = of("docs/how-to/watch-a-run.md")
    lines = block.text.splitlines()
    configured = names_of(Block(block.page, 0, "python", "\n".join(lines[:-2]), None))
    assert configured["config"].learner.steps == 10
    write_config(tmp_path / "mine", configured["config"])
    write_lines(tmp_path / "mine" / "steps.jsonl", ({"step": i, "success": 0.1 * i} for i in range(8)))
    drawing = Block(block.page, 1, "python", f"axes = {lines[-1]}", None)
    drawn = names_of(drawing, results=hora_rl.results(tmp_path / "mine"))
    assert len(drawn["axes"].lines[0].get_xdata()) == 8


def test_rows_with_programs_have_their_tests() -> None:
    """One object over several lines, and one on each."""
    _, first, second = (block.text for block in of("docs/how-to/add-a-reward.md"))
    rows = [json.loads(first), *map(json.loads, second.strip().splitlines())]
    settings = load("tiny-code").reward.code_tests
    assert settings is not None
    assert all(layouts.tests_of(settings, row) for row in rows)


def test_an_environment_opens_its_door() -> None:
    [block] = of("docs/how-to/write-an-environment.md")
    names = names_of(block)
    doors = iter(["door 1", "door 2", "door 3"])

    class Policy:
        async def generate(self, *messages: Any) -> SimpleNamespace:
            for text in doors:
                return SimpleNamespace(text=text)
            raise names["EpisodeOver"]

    row = SimpleNamespace(answer="3")
    assert asyncio.run(names["escape"](row, Policy(), None)).rewards == {"solved": 1.0}
    assert asyncio.run(names["escape"](row, Policy(), None)).rewards == {"solved": 0.0}


def test_the_rewards_of_the_page_reward() -> None:
    block, *_ = of("docs/how-to/add-a-reward.md")
    service = Mock(grade=AsyncMock(side_effect=[0.25, ConnectionError("away")]))
    names = names_of(block, my_service=service)
    said = {"problem": "p", "completion": "it is 4", "finish_reason": "stop", "tokens": 5}
    answer = SimpleNamespace(**said, gold="4", row={"expected": "4"})
    longer = SimpleNamespace(tokens=9)
    assert names["brevity"]("p", "abc", "4") == 0.25
    assert names["passes"](answer) == 1.0
    assert names["shortest"]([answer, longer]) == [1.0, 0.0]
    assert names["parts"](answer) == {"right": True, "words": 3}
    assert asyncio.run(names["judge"](answer)) == 0.25
    with pytest.raises(Unavailable):
        asyncio.run(names["judge"](answer))


GUIDES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs" / "how-to").glob("*.md"))]
YAML = [block for page in GUIDES for block in blocks(page) if block.kind == "yaml"]
SECTIONS = set(Config.model_fields)
CONFIGURATIONS = [b for b in YAML if set(yaml.safe_load(b.text)) <= SECTIONS]
ANOTHER_PYTHON = [b for b in CONFIGURATIONS if yaml.safe_load(b.text).get("environment", {}).get("verifiers")]
"""Environments of a library that has a Python of its own, with modules that a reader has and we have not."""
PUBLISHED = "docs/how-to/use-published-data.md"
"""Its configurations name data sets of the hub."""
ROW = {"problem": "1+1=?", "answer": "2", "expected": "2"}
ROW |= {"messages": [{"role": "user", "content": "1+1=?"}, {"role": "assistant", "content": r"\boxed{2}"}]}
ROW |= {"task": "print 2", "tests": [{"input": "", "output": "2\n"}], "solution": "print(2)"}
"""A row that every page's rewards can use."""
NARROW = {"environment": {"max_turn_tokens": 40, "max_given_tokens": 100}}
NARROW |= {"rollout": {"max_prompt_tokens": 128, "max_response_tokens": 200}}
"""The demo's model has a context of 512 tokens."""


def tiny() -> dict:
    preset = yaml.safe_load((ROOT / "deploy/presets/tiny.yaml").read_text())
    preset["model"]["path"] = str(ROOT / preset["model"]["path"])
    return preset


def completed(text: str) -> dict:
    """The configuration of a page on the demo's model, which has no words for a system message, and
    on rows of ours, with what a page leaves out."""
    shown, base = yaml.safe_load(text), tiny()
    own = {"data": {"path": "problems.jsonl", "system": None}, "evaluation": {"path": None}}
    if sources := shown.get("data", {}).get("sources"):
        own["data"] = {"sources": {name: {**source, "system": None} for name, source in sources.items()}}
        del shown["data"]
    for name in ("environment", "rollout"):
        limits = {k: v for k, v in NARROW[name].items() if name == "rollout" or name in shown}
        shown[name] = {**shown.get(name, {}), **limits}
    model = {**shown.pop("model", {}), **base["model"]}
    kept = {k: v for k, v in base.items() if k not in (*own, "model")}
    merged = {k: {**kept.get(k, {}), **own.get(k, {}), **shown.get(k, {})} for k in {*kept, *own, *shown}}
    return {**{k: v for k, v in merged.items() if v}, "model": model}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files that the pages name."""
    for name, row in (("problems", ROW), ("programs", ROW), ("held-out", {**ROW, "problem": "2+0=?"})):
        (tmp_path / f"{name}.jsonl").write_text(60 * (json.dumps(row) + "\n"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.system
@pytest.mark.parametrize(
    "block", [b for b in CONFIGURATIONS if b not in ANOTHER_PYTHON], ids=lambda b: b.name
)
def test_the_configuration_of_a_page_passes_hora_check(block: Block, folder: Path) -> None:
    """Rows of ours stand for published ones, whose layouts `tests/actors/test_layouts.py` reads."""
    for code in (b for b in blocks(block.page) if b.kind == "python" and "def " in b.text):
        name = "rooms" if "rooms" in block.text else "my_rewards"
        (folder / f"{name}.py").write_text(code.text)
    config = completed(block.text)
    for section, ours in (("data", "problems.jsonl"), ("evaluation", "held-out.jsonl")):
        if block.page == PUBLISHED:
            config[section] = {**config[section], "path": ours, "name": None}
    (folder / "mine.yaml").write_text(yaml.safe_dump(config))
    done = CliRunner().invoke(app, ["check", "mine.yaml", "--elsewhere"])
    assert done.exit_code == 0, done.output + repr(done.exception)
    if "sources" in block.text:
        assert "math: 60 prompts" in done.output
        assert "code: code_tests 1: reward 1, a success" in done.output


@pytest.mark.parametrize("block", ANOTHER_PYTHON, ids=lambda b: b.name)
def test_the_configuration_of_an_environment_with_another_python_has_only_known_keys(block: Block) -> None:
    shown = Config.model_validate(completed(block.text)).model_dump()
    for section, values in yaml.safe_load(block.text).items():
        assert shown[section].keys() >= values.keys()
