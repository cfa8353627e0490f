"""The learner steps on a shared card only when the generator sleeps."""

from typing import Any

import pytest

from hora_rl.common.errors import RunError
from hora_rl.common.live.telemetry import STEPPING, TO_SLEEP
from hora_rl.common.load import load
from hora_rl.learner.weights import shared_card
from hora_rl.learner.weights.shared_card import SharedCard


class Told:
    """A heart and a broadcast client in one, whose replica is there from the `up`th call on."""

    def __init__(self, up: int) -> None:
        self.up, self.did = up, list[Any]()

    def update(self, **state: Any) -> None:
        self.did.append(state["state"])

    def sleep(self, version: int) -> list[str]:
        self.up -= 1
        self.did.append(version)
        return [] if self.up >= 0 else ["generator/a"]


def card(told: Told, *settings: str) -> SharedCard:
    config = load("tiny", ["generator.sleep=step", "rollout.max_staleness=0", *settings])
    return SharedCard(config, told, told)  # type: ignore[arg-type]


def test_a_step_waits_until_the_generator_sleeps_at_the_last_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_card, "POLL_S", 0.0)
    told, versions = Told(up=2), iter([3, 3, 4])
    took = card(told).acquire(3, lambda: next(versions), lambda: told.did.append("helps"))
    # From TO_SLEEP until STEPPING a replica may start.
    assert told.did == [TO_SLEEP, 3, "helps", 3, "helps", 4, STEPPING]
    assert took["time/sleep"] >= 0


def test_a_generator_that_never_sleeps_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_card, "POLL_S", 0.0)
    told = Told(up=10**9)
    with pytest.raises(RunError, match=r"did not fall asleep at version 3 within 0.01 s"):
        card(told, "learner.wait_limit_s=0.01").acquire(3, lambda: 3, lambda: None)
    assert STEPPING not in told.did


def test_without_sleep_nobody_is_asked() -> None:
    told = Told(up=0)
    assert card(told, "generator.sleep=none").acquire(3, lambda: 3, lambda: None) == {}
    assert told.did == []
