"""The README and docs/ have code that runs, configurations that load, and commands that exist. Commands read
folders of ended runs."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import typer
import yaml
from typer.testing import CliRunner

from hora_rl.common.config import Config
from hora_rl.common.errors import Unavailable
from hora_rl.deploy.cli import app
from tests.support.jsonl import write_lines
from tests.support.pages import ROOT, Block, blocks
from tests.support.reported_runs import make_run
from tests.support.rollouts import write_rollouts
from tests.support.synthetic_run import write_ended
from tools import reference

DOCS = ROOT / "docs"
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in DOCS.rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in blocks(page)]
CONFIGURATIONS = [
    b for b in BLOCKS if b.kind == "yaml" and set(yaml.safe_load(b.text)) <= Config.model_fields.keys()
]


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_reference_is_current(page: str) -> None:
    text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    assert text == reference.PAGES[page](), "run: make reference"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_exists(page: str) -> None:
    known = typer.main.get_group(app).commands
    text = (ROOT / page).read_text(encoding="utf-8")
    for command, rest in re.findall(r"(?:`|^ *|bin/)hora ([a-z]+\b)([^`\n#]*)", text, re.MULTILINE):
        options = {o for p in known[command].params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        assert set(re.findall(r"(?<= )--?[a-z][a-z-]*", rest)) <= options, f"hora {command}{rest}"


@pytest.mark.parametrize("block", CONFIGURATIONS, ids=lambda b: b.name)
def test_the_configuration_of_a_page_is_valid(block: Block) -> None:
    shown = yaml.safe_load(block.text)
    source = {} if "sources" in shown.get("data", {}) else {"path": "problems.jsonl"}
    least: dict[str, dict[str, Any]] = {"model": {"path": "m"}, "data": source}
    Config.model_validate({k: {**least.get(k, {}), **shown.get(k, {})} for k in least | shown})


def names_of(block: Block, **known: Any) -> dict[str, Any]:
    """What a reader has after running it."""
    exec(compile(block.text, block.name, "exec"), known)
    return known


def python_of(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.kind == "python"]


def test_the_python_of_the_readme_divides_as_it_says() -> None:
    (block,) = python_of("README.md")
    [call] = [line.partition("  #")[0] for line in block.text.splitlines() if "budget=72" in line]
    assert sum(eval(call, names_of(block))) == 72


def test_an_environment_opens_its_door() -> None:
    [block] = python_of("docs/how-to/write-an-environment.md")
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
    block, *_ = python_of("docs/how-to/add-a-reward.md")
    service = Mock(grade=AsyncMock(side_effect=[0.25, ConnectionError("away")]))
    names = names_of(block, my_service=service)
    judged = {"problem": "p", "completion": "it is 4", "finish_reason": "stop", "tokens": 5}
    answer = SimpleNamespace(**judged, gold="4", row={"expected": "4"})
    assert names["brevity"]("p", "abc", "4") == 0.25
    assert names["passes"](answer) == 1.0
    assert names["shortest"]([answer, SimpleNamespace(tokens=9)]) == [1.0, 0.0]
    assert names["parts"](answer) == {"right": True, "words": 3}
    assert asyncio.run(names["judge"](answer)) == 0.25
    with pytest.raises(Unavailable):
        asyncio.run(names["judge"](answer))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read: runs that have ended, and recorded counts."""
    made = tmp_path_factory.mktemp("reader")
    runs = made / "runs"
    write_ended(runs / "over")
    write_rollouts(runs / "sampled", steps=3, prompts=2)
    make_run(runs / "reported", "hit_utility", 0, steps=8)
    for name, rule in (("one", "hit_utility"), ("two", "uniform")):
        (runs / name).mkdir()
        config = {"run": {"name": name}, "allocation": {"rule": rule}, "learner": {"steps": 3}}
        (runs / name / "config.yaml").write_text(yaml.safe_dump(config))
        steps = [{"step": i, "success": 0.1 * i, "rollouts": 10, "time/step": 60.0} for i in range(3)]
        write_lines(runs / name / "steps.jsonl", steps)
    counts = ({"id": f"q{i}", "successes": i % 33, "trials": 32} for i in range(330))
    write_lines(made / "counts.jsonl", counts)
    return made


@pytest.mark.system
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("init named.yaml --task code --model smollm2", "named.yaml"),
        ("check tiny --elsewhere", "valid. 2000 prompts"),
        ("monitor runs/over --once", "finished"),
        ("monitor runs/over --json", '"step": 3'),
        ("runs", "finished"),
        ("rollouts runs/sampled --step 1 --prompt 0 --failure --order longest", "step 1"),
        ("report runs/reported", "report"),
        ("report runs/one runs/two --out compared", "report.html"),
        ("plan counts.jsonl", "hit_utility"),
    ],
)
def test_a_command_does_what_it_says_on_ended_runs(
    command: str, says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert says in done.output
