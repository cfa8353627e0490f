"""When a version is sent again, and that all ranks of the learner agree on it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.config import Config
from common.keys import Keys
from common.load import load
from common.redis import connect
from common.telemetry import heartbeat_now
from deploy.redis_server import RedisServer

pytestmark = pytest.mark.system  # vLLM takes seconds to import


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Any]:
    with RedisServer(tmp_path / "redis") as server:
        yield connect(server.url)


def group(config: Config, client: Any, rank: int, version: int, sent_s_ago: float) -> Any:
    from learner.broadcast import BroadcastClient
    from learner.transfer_group import TransferGroup

    made = TransferGroup(config, client, BroadcastClient(config), None, rank)  # type: ignore[arg-type]
    made.version, made._sent_at = version, time.time() - sent_s_ago
    return made


def test_a_version_is_sent_again_on_every_rank_when_a_replica_that_runs_holds_less(client: Any) -> None:
    config = load("tiny", ["run.name=again", "weights.transport=gloo"])
    ranks = [group(config, client, rank, 7, sent_s_ago=30.0) for rank in (0, 1)]
    assert not any(rank.wants_again() for rank in ranks), "no replica, nobody to send to"
    heartbeat_now(client, "again", "generator/a", {"version": 7})
    assert not any(rank.wants_again() for rank in ranks)
    heartbeat_now(client, "again", "generator/b", {"version": 0})
    heartbeat_now(client, "again", "verifier/c", {"version": 0})
    assert not ranks[1].wants_again(), "rank 0 decides"
    assert [rank.wants_again() for rank in ranks] == [True, True]
    for rank in ranks:
        rank._sent_at = time.time()
    assert [rank.wants_again() for rank in ranks] == [False, False], "once for one broadcast"
    assert client.hget(Keys("again").state, "resent") == b"1"


@pytest.mark.parametrize(("version", "sent_s_ago"), [(-1, 30.0), (7, 1.0), (7, -30.0)])
def test_nothing_is_sent_again_before_a_first_time_too_soon_or_for_a_word_from_before(
    client: Any, version: int, sent_s_ago: float
) -> None:
    config = load("tiny", ["run.name=again", "weights.transport=gloo"])
    heartbeat_now(client, "again", "generator/b", {"version": 0})
    assert not group(config, client, 0, version, sent_s_ago).wants_again()
