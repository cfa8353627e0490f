"""The learner steps on a shared card only when the generator sleeps."""

from typing import Any

import pytest

from hora_rl.common.errors import RunError
from hora_rl.common.live.telemetry import STEPPING, TO_SLEEP
from hora_rl.common.load import load
from hora_rl.learner.weights import publisher
from hora_rl.learner.weights.publisher import acquire_card


class Calls:
    """A heart and a publisher in one, whose replica sleeps from the `up`th call on."""

    def __init__(self, up: int) -> None:
        self.up, self.published, self.made = up, 3, list[Any]()

    def update(self, **state: Any) -> None:
        self.made.append(state["state"])

    def sleeping(self) -> int:
        self.up -= 1
        self.made.append(self.published)
        return int(self.up < 0)

    def help_replicas(self, step: int) -> None:
        self.made.append("helps")


def acquired(calls: Calls, *settings: str) -> dict[str, float]:
    config = load("tiny", ["generator.sleep=step", "rollout.max_staleness=0", *settings])
    return acquire_card(config.generator, config.learner.wait_limit_s, calls, calls, 3)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "POLL_S", 0.0)


def test_a_step_waits_until_the_generator_sleeps() -> None:
    calls = Calls(up=2)
    assert acquired(calls)["time/sleep"] >= 0
    # From TO_SLEEP until STEPPING a replica may start.
    assert calls.made == [TO_SLEEP, 3, "helps", 3, "helps", 3, STEPPING]


def test_a_generator_that_never_sleeps_ends_the_run() -> None:
    calls = Calls(up=10**9)
    with pytest.raises(RunError, match=r"learner\.wait_limit_s"):
        acquired(calls, "learner.wait_limit_s=0.01")
    assert STEPPING not in calls.made


def test_without_sleep_nobody_is_asked() -> None:
    calls = Calls(up=0)
    assert acquired(calls, "generator.sleep=none") == {}
    assert calls.made == []
