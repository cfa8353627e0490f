"""Built-in environments and the history that the template renders, over the whole stack: generator and
learner agree on every turn, whatever is a sequence."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.jsonl import lines
from tests.system.conftest import LiveRun

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 2
TWICE = """
from hora_rl.actors.environment.protocol import Episode, EpisodeOver
from hora_rl.actors.environment.python_tool import python_tool

class Asks:
    # The demo model calls no tool by itself: its first turn is read as if it had.
    def __init__(self, policy, call):
        self._policy, self._call, self._asked = policy, call, False

    async def generate(self, *new):
        said = await self._policy.generate(*new)
        if self._asked:
            return said
        self._asked = True
        return type(said)(self._call, said.tokens, said.finish_reason)

async def programs(row, policy, sandbox):
    return await python_tool(row, Asks(policy, "```python\\nprint(6 * 7)\\n```"), sandbox)
"""


@pytest.mark.parametrize(
    ("path", "history", "heard"),
    [
        ("python", "append", None),
        ("asking_rooms:programs", "render", "42"),
        ("asking_rooms:programs", "append", "42"),
    ],
)
def test_generator_and_learner_agree(
    live_run: Callable[..., LiveRun],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    history: str,
    heard: str | None,
) -> None:
    (tmp_path / "asking_rooms.py").write_text(TWICE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = live_run(
        STEPS,
        **{
            "environment.path": path,
            "environment.history": history,
            "environment.max_turn_tokens": 60,
            "environment.max_given_tokens": 120,
        },
    )
    run.finish()
    run.assert_exact()
    steps = lines(run.run / "steps.jsonl")
    assert len(steps) == STEPS
    assert max(s["drift"] for s in steps if "drift" in s) < 1e-4
    if heard is not None:
        assert all(s["turns/mean"] > 1.0 for s in steps)
        rows = pq.read_table(run.run / "rollouts" / f"step-{STEPS - 1:08d}.parquet").to_pylist()
        assert any(heard in row["completion"] for row in rows)
