"""When a version is sent again."""

import time
from typing import Any

import pytest
import torch

from common.load import load
from common.redis import connect
from common.telemetry import heartbeat_now
from deploy.launch.redis_server import RedisServer

pytestmark = pytest.mark.system  # vLLM takes seconds to import


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    return connect(redis_server.url)


def group(client: Any, sent_s_ago: float) -> Any:
    """A group that broadcast a version then, when no replica was there."""
    from learner.weights.broadcast import BroadcastClient
    from learner.weights.host_copy import Snapshot
    from learner.weights.transfer_group import TransferGroup

    config = load("tiny", ["run.name=again", "weights.transport=gloo"])
    times = iter([time.time() - sent_s_ago])
    clock = lambda: next(times, time.time())  # noqa: E731
    made = TransferGroup(config, client, BroadcastClient(1.0), clock)
    assert made.send(Snapshot(7, [], torch.device("cpu"))) == []
    return made


def test_a_version_is_sent_again_when_a_replica_that_runs_holds_less(client: Any) -> None:
    sent = group(client, sent_s_ago=30.0)
    assert not sent.is_behind(7), "no replica, nobody to send to"
    heartbeat_now(client, "again", "generator/a", {"version": 7})
    heartbeat_now(client, "again", "verifier/c", {"version": 0})
    assert not sent.is_behind(7)
    heartbeat_now(client, "again", "generator/b", {"version": 6})
    assert sent.is_behind(7)


@pytest.mark.parametrize("sent_s_ago", [1.0, -30.0])
def test_nothing_is_sent_again_too_soon_or_for_a_word_from_before(client: Any, sent_s_ago: float) -> None:
    heartbeat_now(client, "again", "generator/b", {"version": 0})
    assert not group(client, sent_s_ago).is_behind(7)
