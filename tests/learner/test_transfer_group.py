"""When a version is sent again."""

import time
from typing import Any

import pytest
import torch

from hora_rl.common.live.redis import connect
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.common.load import load
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.learner.weights.broadcast import BroadcastClient
from hora_rl.learner.weights.host_copy import Snapshot

pytestmark = pytest.mark.system  # vLLM takes seconds to import


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    return connect(redis_server.url)


def _snapshot(version: int) -> Snapshot:
    return Snapshot(version, [], torch.device("cpu"))


class Clock:
    """The time, `ago` seconds before now."""

    ago = 0.0

    def __call__(self) -> float:
        return time.time() - self.ago


def group(client: Any, sent_s_ago: float, clock: Clock) -> Any:
    """A group that broadcast a version then, when no replica was there."""
    from hora_rl.learner.weights.transfer_group import TransferGroup

    config = load("tiny", ["run.name=again", "weights.transport=gloo"])
    clock.ago = sent_s_ago
    made = TransferGroup(config, client, BroadcastClient(1.0), clock)
    assert made.send(_snapshot(7)) == []
    clock.ago = 0.0
    return made


def test_a_version_is_sent_again_when_a_replica_that_runs_holds_less(client: Any) -> None:
    sent = group(client, 30.0, Clock())
    assert not sent.is_behind(7), "no replica, nobody to send to"
    heartbeat_now(client, "again", "generator/a", {"version": 7})
    heartbeat_now(client, "again", "verifier/c", {"version": 0})
    assert not sent.is_behind(7)
    heartbeat_now(client, "again", "generator/b", {"version": 6})
    assert sent.is_behind(7)


def test_a_pinned_replica_is_neither_called_nor_late_until_the_last_version(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [
        {"replica": "generator/a", "version": 6, "pinned": False},
        {"replica": "generator/b", "version": 4, "pinned": True},
    ]
    broadcast = BroadcastClient(1.0, lambda *_: answers)
    assert broadcast.roll_call(7, pinned=False) == {"generator/a": 6}
    assert broadcast.roll_call(7, pinned=True) == {"generator/a": 6, "generator/b": 4}

    clock = Clock()
    sent = group(client, 30.0, clock)
    heartbeat_now(client, "again", "generator/a", {"version": 7})
    heartbeat_now(client, "again", "generator/b", {"version": 4, "pinned": 4})
    assert not sent.is_behind(7)
    asked = list[bool]()
    monkeypatch.setattr(
        BroadcastClient,
        "roll_call",
        lambda _, coming, *, pinned: (asked.append(pinned), {"generator/b": 99})[1],
    )
    last = load("tiny").learner.steps
    clock.ago = 30.0
    for version in (7, last):
        sent.send(_snapshot(version))
    clock.ago = 0.0
    assert asked == [False, True], "nobody could send a version after the last"
    assert sent.is_behind(last)


def test_what_a_pinned_replica_holds_is_no_confirmation() -> None:
    said = [
        {"replica": f"generator/{v}", "version": v, "checksum": str(v), "pause_s": v, "checksum_s": 0}
        for v in (4, 7)
    ]
    assert BroadcastClient(1.0, lambda *_: said).confirm(7) == said[1:]


@pytest.mark.parametrize("sent_s_ago", [1.0, -30.0])
def test_nothing_is_sent_again_too_soon_or_for_a_word_from_before(client: Any, sent_s_ago: float) -> None:
    heartbeat_now(client, "again", "generator/b", {"version": 0})
    assert not group(client, sent_s_ago, Clock()).is_behind(7)
