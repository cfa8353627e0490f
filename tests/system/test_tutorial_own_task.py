"""The tutorial "your own task" as a new user does it: its files and its commands, in a folder of their own.

What is changed, and why: ports are free ones, because other tests and runs use the usual ones; `source` and
`mkdir` are what the test does itself; the comparison with GRPO takes two steps; the cluster is that of
test_elastic.py.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.support.jsonl import lines
from tests.support.pages import Block, blocks
from tests.support.programs import run_well

PAGE = "docs/tutorial/your-own-task.md"
BIN = Path(sys.executable).parent
ACTIVATE = "source .venv/bin/activate\nmkdir my-task\ncd my-task\n"
FREE = " -s telemetry.http_port=0"
CHANGES = {
    "hora run my-task.yaml\n": f"hora run my-task.yaml{FREE}\n",
    "hora check my-task.yaml\n": f"hora check my-task.yaml{FREE}\n",
    "-s allocation.rule=uniform": f"-s allocation.rule=uniform -s learner.steps=2{FREE}",
}
pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)]


def is_cluster(block: Block) -> bool:
    return any(word in block.text for word in ("RAY_AUTH_MODE", "my-cluster", "ray stop"))


def test_the_reader_s_own_reward_rule_and_data_are_checked_trained_and_read(tmp_path: Path) -> None:
    for block in blocks(PAGE):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
    first, *rest = [b for b in blocks(PAGE) if b.kind == "sh" and not is_cluster(b)]
    assert first.text == ACTIVATE
    script = "".join(block.text for block in rest)
    for old, new in CHANGES.items():
        assert old in script, f"{old!r} is not in the page any more"
        script = script.replace(old, new)
    env = {"PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "200"}
    said = run_well("bash", "-euo", "pipefail", "-c", script, cwd=tmp_path, limit_s=1000, **env).stdout
    assert "rule my_rule:unsure" in said
    assert "right answer: my_reward:right 1, my_reward:tidy 1: reward 1, a success" in said
    assert "none missing, none doubled" in said
    assert "miss  reward" in said, "hora rollouts --failure"
    groups = lines(tmp_path / "runs" / "my-task" / "groups.jsonl")
    assert len(groups) == 6 * 20
    assert {g["rule"] for g in groups} == {"my_rule:unsure"}
    assert set(groups[0]["rewards"]) == {"my_reward:right", "my_reward:tidy"}
    assert len({g["size"] for g in groups}) > 1, "the rule divides"
    assert (tmp_path / "report" / "report.html").exists()
