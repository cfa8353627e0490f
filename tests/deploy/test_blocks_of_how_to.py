"""The Python, JSON and shell blocks of the pages do what these say, on the smallest thing that stands for a
reader's own. Their YAML is in test_yaml_of_pages.py. A new block of docs/ fails here until it has a place."""

import asyncio
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
from typer.testing import CliRunner

import hora_rl
from hora_rl.allocator.posterior import Posterior
from hora_rl.common.data import rewards
from hora_rl.common.errors import Unavailable
from hora_rl.common.load import load
from hora_rl.deploy.cli import app
from hora_rl.deploy.machine.record import write_config
from tests.support.pages import ROOT, Block, blocks, commands
from tests.support.rollouts import write_rollouts

PAGES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))
KINDS = {"sh", "python", "json"}
HERE = {
    "docs/explanation/method.md": 1,
    "docs/how-to/add-a-reward.md": 3,
    "docs/how-to/watch-a-run.md": 4,
    "docs/how-to/write-an-environment.md": 1,
}
ELSEWHERE = {
    "docs/how-to/run-on-several-machines.md": "tests/system/test_two_machines.py",
    "docs/tutorial/first-run.md": "tests/system/test_first_run.py",
    "docs/tutorial/your-own-task.md": "tests/system/test_tutorial_own_task.py",
}
UNRUN = {"docs/how-to/deploy-in-containers.md": 2, "docs/how-to/evaluate-a-model.md": 2}
"""Pages whose commands need what no test has, and which say so."""


def of(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.kind in KINDS]


def names_of(block: Block, **given: Any) -> dict[str, Any]:
    """What a reader has after running it, who has `given` already."""
    exec(compile(block.text, block.name, "exec"), given)
    return given


def test_every_block_that_can_be_run_is() -> None:
    assert {p: len(of(p)) for p in PAGES if of(p) and p not in ELSEWHERE} == HERE | UNRUN
    texts = [" ".join((ROOT / page).read_text(encoding="utf-8").split()) for page in UNRUN]
    assert all("were never run" in text for text in texts)
    for page, test in ELSEWHERE.items():
        assert of(page)
        assert page in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "block", [b for p in ("README.md", *PAGES) for b in blocks(p) if b.kind == "sh"], ids=lambda b: b.name
)
def test_a_shell_block_is_written_without_mistakes(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_the_python_of_the_readme_divides_as_it_says() -> None:
    (block,) = [b for b in blocks("README.md") if b.kind == "python"]
    called = "allocate(successes=[0, 3, 8], trials=8, budget=72)"
    assert f"{called}  # Δ_i of each prompt, summing to 72" in block.text
    assert sum(eval(called, names_of(block))) == 72


@pytest.mark.system
def test_rollouts_are_read_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rollouts(Path("runs/tiny"), steps=13, prompts=8)
    shell, filtered, plain, _ = of("docs/how-to/watch-a-run.md")
    said = [CliRunner(env={"COLUMNS": "200"}).invoke(app, c.split()[1:]) for c in commands(shell)]
    assert [done.exit_code for done in said] == [0] * 6, [done.output for done in said]
    newest, failed, prompt, longest, unlikely, rows = (done.output for done in said)
    assert "step 12" in newest
    assert "step 12, failures" in failed
    assert "prompt 7" in prompt
    assert longest.count("\n#") == 3
    assert "lowest mean log-prob per token first" in unlikely
    assert all(json.loads(line)["success"] for line in rows.splitlines())

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
    assert lines[-2] == "found = hora_rl.run(config)"
    configured = names_of(Block(block.page, 0, "python", "\n".join(lines[:-2]), None))
    assert configured["config"].learner.steps == 10
    write_config(tmp_path / "mine", configured["config"])
    steps = [json.dumps({"step": i, "success": 0.1 * i}) + "\n" for i in range(8)]
    (tmp_path / "mine" / "steps.jsonl").write_text("".join(steps))
    drawn = names_of(
        Block(block.page, 1, "python", f"axes = {lines[-1]}", None), found=hora_rl.results(tmp_path / "mine")
    )
    assert len(drawn["axes"].lines[0].get_xdata()) == 8


def test_a_rule_has_the_parameters_that_the_page_names() -> None:
    [block] = of("docs/explanation/method.md")
    from numpy.typing import NDArray

    gain = names_of(block, Posterior=Posterior, NDArray=NDArray, np=np)["gain"]
    assert list(gain.__annotations__) == ["posterior", "level", "return"]


def test_rows_with_programs_have_their_tests() -> None:
    """One object over several lines, and one on each."""
    _, first, second = (block.text for block in of("docs/how-to/add-a-reward.md"))
    rows = [json.loads(first), *map(json.loads, second.strip().splitlines())]
    settings = load("tiny-code").reward.code_tests
    assert settings is not None
    assert all(rewards.tests_of(settings, row) for row in rows)


def test_an_environment_opens_its_door() -> None:
    [block] = of("docs/how-to/write-an-environment.md")
    names = names_of(block)
    said = iter(["door 1", "door 2", "door 3"])
    asked: list[Any] = []

    class Policy:
        async def generate(self, *messages: Any) -> SimpleNamespace:
            asked.append(messages)
            for text in said:
                return SimpleNamespace(text=text)
            raise names["EpisodeOver"]

    row = SimpleNamespace(answer="3")
    assert asyncio.run(names["escape"](row, Policy(), None)).rewards == {"solved": 1.0}
    assert [len(messages) for messages in asked] == [0, 1, 1]
    assert asyncio.run(names["escape"](row, Policy(), None)).rewards == {"solved": 0.0}


def test_the_rewards_of_the_page_reward() -> None:
    block, *_ = of("docs/how-to/add-a-reward.md")

    class Service:
        async def grade(self, problem: str, completion: str) -> float:
            if not completion:
                raise ConnectionError("away")
            return 0.25

    names = names_of(block, my_service=Service())
    answer = SimpleNamespace(
        problem="p", completion="it is 4", gold="4", row={"expected": "4"}, finish_reason="stop", tokens=5
    )
    longer = SimpleNamespace(tokens=9)
    assert names["brevity"]("p", "abc", "4") == 0.25
    assert names["passes"](answer) == 1.0
    assert names["shortest"]([answer, longer]) == [1.0, 0.0]
    assert names["parts"](answer) == {"right": True, "words": 3}
    assert asyncio.run(names["judge"](answer)) == 0.25
    answer.completion = ""
    with pytest.raises(Unavailable, match="away"):
        asyncio.run(names["judge"](answer))
