"""Which groups a step takes, on a real Redis, whatever is in the queue and whoever dies."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from hora_rl.common.config import Config
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import Consumer, Row
from hora_rl.common.live.redis import connect
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.common.types import Group
from hora_rl.common.wire import encode_extra, encode_pre_rollouts
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.learner.feed.admission import Vocabulary
from hora_rl.learner.feed.reader import Planner, Reader, divide
from tests.support.groups import fill, group, rollout

GAMMA = 3
VOCABULARY = Vocabulary("tok", 9)
REWARDS = [{"accuracy": a, "format": f} for a, f in ((7.0, 1.0), (1.0, -0.5), (0.0, 1.0))]
REWARDS += [{"accuracy": 1.0}]
"""What the run's rewards cannot give."""


def config(**learner: Any) -> Config:
    base = {"run": {"name": "f"}, "model": {"path": "m"}, "data": {"path": "arithmetic"}}
    rollout = {"prompts_per_batch": GAMMA, "shards": 1, "max_staleness": 1}
    return Config.model_validate({**base, "rollout": rollout, "learner": {"wait_limit_s": 1.0, **learner}})


def of_run(index: int, **changes: Any) -> Group:
    """The group of prompt `index` as the run of these tests pushes it."""
    return group(index, **{"run": "f", "batch": index // GAMMA, "tokenizer": "tok", "prompt": [1], **changes})


def push(redis_server: RedisServer, *groups: Group) -> None:
    fill(config(), redis_server, groups)


def push_raw(client: Any, index: int, *messages: bytes) -> None:
    """What a broken or foreign producer could put in the queue under the envelope of this prompt."""
    keys, name = Keys("f"), f"0:{index}"
    entry = client.xadd(keys.groups, {"id": name, "batch": "0"})
    client.hset(keys.pushed, name, entry)
    places = keys.pre_rollouts(name), keys.additional(entry.decode())
    for key, message in zip(places, messages, strict=False):
        client.set(key, message)


def planner(redis_server: RedisServer, start: int = 0, **learner: Any) -> Planner:
    return Planner(connect(redis_server.url), config(**learner), VOCABULARY, start)


def trained(redis_server: RedisServer, step: int) -> list[str]:
    return sorted(g.id for g in Reader(connect(redis_server.url), config(), 0, 1).read(step))


def test_a_corrupt_message_is_a_dead_letter_with_reason_and_stops_nothing(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hora_rl.learner.feed.reader.UNUSABLE_IN_A_ROW", 20)
    client, keys = connect(redis_server.url), Keys("f")
    push_raw(client, 76, encode_pre_rollouts(of_run(75)), encode_extra(of_run(75)))
    push_raw(client, 77, b"\xc1garbage", b"\xc1garbage")
    push_raw(client, 78)
    client.xadd(keys.groups, {"id": "0:79", "batch": "0"})
    long = rollout([1] * (config().rollout.max_response_tokens + 1), phase="B")
    bad = [
        of_run(90, tokenizer="other"),
        of_run(91, run="other"),
        of_run(92, prompt=[99]),
        of_run(93, rollouts=(rollout([1]), long)),
        *(of_run(94 + i, rollouts=(rollout(), rollout(phase="B", rewards=r))) for i, r in enumerate(REWARDS)),
    ]
    push(redis_server, *bad, *(of_run(i) for i in range(GAMMA)))
    planner(redis_server).plan(0, lambda: None)
    assert trained(redis_server, 0) == ["0:0", "0:1", "0:2"]
    reasons = [fields[b"reason"].decode() for _, fields in client.xrange(keys.dead)]
    assert len(reasons) == 12
    for words in (
        "came as",
        "malformed",
        "acknowledged or removed",
        "as group '0:79'",
        "tokenizer 'other'",
        "is of run 'other'",
        "outside the vocabulary of 9",
        "max_response_tokens",
        "rollout 1: reward accuracy is 7, it gives 0 to 1",
        "rollout 1: reward format is -0.5, it gives 0 to 1",
        "rollout 1: success is True, and reward.success",
        "its rewards must be accuracy, format",
    ):
        assert any(words in r for r in reasons), words
    assert client.hget(keys.counters, "dead_letters") == b"12"
    assert sorted(client.hkeys(keys.redo)) == [b"0:%d" % i for i in (76, 77, 78, *range(90, 98))]


def test_a_prompt_of_no_row_is_a_dead_letter_and_not_asked_for_again(redis_server: RedisServer) -> None:
    client, keys = connect(redis_server.url), Keys("f")
    client.hset(keys.state, "prompts", '{"n": 90, "fingerprint": "f"}')
    push(redis_server, of_run(90), of_run(89), *(of_run(i) for i in range(GAMMA)))
    feed = planner(redis_server)
    feed.plan(0, lambda: None)
    ((_, letter),) = client.xrange(keys.dead)
    assert letter[b"reason"] == b"group 0:90: this run has 90 prompts, and none of index 90"
    assert client.hkeys(keys.redo) == []
    assert not client.hexists(keys.pushed, "0:90")


def test_a_claim_whose_answer_was_lost_is_found_again(redis_server: RedisServer) -> None:
    feed = planner(redis_server)
    push(redis_server, *(of_run(i) for i in range(GAMMA)))
    lost = connect(redis_server.url).xreadgroup("learner", "rank-0", {Keys("f").groups: ">"})
    assert len(lost[0][1]) == GAMMA
    feed.plan(0, lambda: None)
    assert trained(redis_server, 0) == ["0:0", "0:1", "0:2"]
    assert Consumer(connect(redis_server.url), config().run.name).claim(0.01) == []
    assert feed.missing(1) == (GAMMA, 1), "nothing is left"


def test_a_checkpoint_that_does_not_fit_this_redis_is_an_error(redis_server: RedisServer) -> None:
    push(redis_server, *(of_run(i) for i in range(2 * GAMMA)))
    feed = planner(redis_server)
    feed.plan(0, lambda: None)
    planner(redis_server, start=1)
    with pytest.raises(RunError, match="contains 2 steps, but this Redis has not planned step 1"):
        planner(redis_server, start=2)
    feed.durable(1)
    feed.plan(1, lambda: None)
    feed.durable(2)
    with pytest.raises(RunError, match="contains 1 steps, but the groups of the first 2 were dropped"):
        planner(redis_server, start=1)
    assert connect(redis_server.url).hget(Keys("f").state, "durable_step") == b"2"


def test_what_rank_0_keeps_is_not_read_again_and_let_go_after_its_step(redis_server: RedisServer) -> None:
    push(redis_server, *(of_run(i) for i in range(2 * GAMMA)))
    feed = planner(redis_server)
    feed.plan(0, lambda: None)
    assert len(feed.kept) == 2 * GAMMA
    client = connect(redis_server.url)
    # What is read again would not be found.
    client.delete(*client.scan_iter("*additional:*"), *client.scan_iter("*pre_rollouts:*"))
    reader = Reader(client, config(), 0, 1, feed.kept)
    assert [g.prompt_index for g in reader.read(0)] == [0, 1, 2]
    feed.plan(1, lambda: None)
    assert len(feed.kept) == GAMMA
    assert [g.prompt_index for g in reader.read(1)] == [3, 4, 5]


def test_a_waiting_step_says_how_many_groups_it_lacks_and_of_which_batch(redis_server: RedisServer) -> None:
    feed, calls = planner(redis_server), list[tuple[int, int]]()
    push(redis_server, *(of_run(i) for i in (0, 1, 3, 4)))
    feed.plan(0, lambda: calls.append(feed.missing(0)))
    assert calls == [], "what is there already is not waited for"

    later = iter([of_run(5), of_run(6), of_run(2)])

    def one_more() -> None:
        calls.append(feed.missing(1))
        push(redis_server, next(later))

    feed.plan(1, one_more)
    assert calls == [(2, 0), (1, 0), (1, 0)], "newer groups do not help the batch that must come first"


def test_a_look_between_steps_takes_up_what_has_come_for_the_steps_to_come(redis_server: RedisServer) -> None:
    push(redis_server, *(of_run(i) for i in range(GAMMA)))
    feed = planner(redis_server)
    feed.plan(0, lambda: None)
    feed.look()
    assert len(feed.kept) == GAMMA
    push(redis_server, *(of_run(GAMMA + i) for i in range(GAMMA)))
    feed.look()
    assert {g.prompt_index for g in feed.kept.values()} == set(range(2 * GAMMA))
    feed.plan(1, lambda: pytest.fail("nothing to wait for"))
    assert trained(redis_server, 1) == ["0:3", "0:4", "0:5"]


def test_ten_unusable_messages_in_a_row_stop_the_run_with_the_last_reason(redis_server: RedisServer) -> None:
    bad, feed = [of_run(10 + i, tokenizer="other") for i in range(28)], planner(redis_server)
    push(redis_server, *bad[:9], *(of_run(i) for i in range(GAMMA)), *bad[9:18])
    feed.plan(0, lambda: None)
    assert trained(redis_server, 0) == ["0:0", "0:1", "0:2"], "a usable group starts the count anew"
    assert connect(redis_server.url).xlen(Keys("f").dead) == 18
    push(redis_server, of_run(3), *bad[18:])
    with pytest.raises(RunError, match=r"10 unusable groups in a row.*tokenizer 'other'.*resume") as ended:
        feed.plan(1, lambda: None)
    ((_, letter),) = connect(redis_server.url).xrevrange(Keys("f").dead, count=1)
    assert letter[b"reason"].decode() in str(ended.value)


def test_a_hundred_thousand_foreign_entries_cost_seconds_and_are_gone_then(redis_server: RedisServer) -> None:
    client, keys = connect(redis_server.url), Keys("f")
    junk = "for i = 1, 100000 do redis.call('XADD', KEYS[1], '*', 'id', '0:' .. i % 7, 'batch', '0') end"
    client.eval(junk, 1, keys.groups)
    push(redis_server, *(of_run(i) for i in range(GAMMA)))
    feed = planner(redis_server, wait_limit_s=60.0)
    feed.plan(0, lambda: None)  # within learner.wait_limit_s
    assert trained(redis_server, 0) == ["0:0", "0:1", "0:2"]
    assert client.xlen(keys.groups) == GAMMA
    assert client.xlen(keys.dead) < 1000
    assert client.hget(keys.counters, "dead_letters") == b"100000"


def test_endless_waiting_is_an_error_and_foreign_entries_are_no_life_sign(redis_server: RedisServer) -> None:
    client, keys = connect(redis_server.url), Keys("f")
    with pytest.raises(RunError, match=r"step 0 has waited \d+ s for groups \(learner.wait_limit_s\)"):
        planner(redis_server).plan(0, lambda: client.xadd(keys.groups, {"id": "5", "batch": "0"}) and None)


def test_a_crash_before_a_checkpoint_repeats_its_steps_on_the_same_groups(redis_server: RedisServer) -> None:
    push(redis_server, *(of_run(i) for i in (4, 0, 5, 1, 2, 3)))
    first = planner(redis_server)
    first.plan(0, lambda: None)
    first.plan(1, lambda: None)
    before = [trained(redis_server, s) for s in (0, 1)]
    assert sorted(before[0] + before[1]) == [f"0:{i}" for i in range(6)]
    second = planner(redis_server)
    assert second.plan(0, lambda: None) == second.plan(1, lambda: None) == 0.0
    assert [trained(redis_server, s) for s in (0, 1)] == before


def test_only_what_no_restart_needs_is_let_go_whatever_was_newest(redis_server: RedisServer) -> None:
    push(redis_server, *(of_run(i) for i in range(3 * GAMMA)))
    client, keys = connect(redis_server.url), Keys("f")
    first = planner(redis_server)
    for step in range(3):
        first.plan(step, lambda: None)
    first.durable(0)
    assert client.xlen(keys.groups) == 3 * GAMMA
    first.durable(1)
    assert client.xlen(keys.groups) == 2 * GAMMA
    # The checkpoint of step 3 is the newest, then it is found to be damaged and that of step 1 is taken.
    planner(redis_server, start=3)
    assert client.xlen(keys.groups) == 2 * GAMMA
    again = planner(redis_server, start=1)
    assert again.plan(1, lambda: None) == again.plan(2, lambda: None) == 0.0
    assert [trained(redis_server, step) for step in (1, 2)] == [["0:3", "0:4", "0:5"], ["0:6", "0:7", "0:8"]]
    again.durable(1)
    again.durable(3)
    assert client.xlen(keys.groups) == 0
    assert client.hget(keys.state, "durable_step") == b"3"


def test_what_is_let_go_late_is_let_go_after_a_restart(redis_server: RedisServer) -> None:
    push(redis_server, *(of_run(i) for i in range(3 * GAMMA)))
    client, keys = connect(redis_server.url), Keys("f")
    first = planner(redis_server)
    for step in range(2):
        first.plan(step, lambda: None)
    second = planner(redis_server, start=2)
    assert second.missing(2)[0] == 0, "what no step took is ready"
    second.plan(2, lambda: None)
    second.durable(2)
    assert client.xlen(keys.groups) == GAMMA
    assert Consumer(client, config().run.name).claimed() == GAMMA


@pytest.mark.system
@pytest.mark.parametrize("held", [False, True])
def test_a_run_that_is_paused_or_measures_its_initial_policy_waits_for_as_long_as_it_takes(
    redis_server: RedisServer, held: bool
) -> None:
    client, keys, began = connect(redis_server.url), Keys("f"), time.monotonic()
    client.set(keys.hold, 1) if held else client.hset(keys.state, "paused", "1")

    def resumed_late() -> None:
        if time.monotonic() - began > 1.5 * config().learner.wait_limit_s:
            client.delete(keys.hold)
            client.hset(keys.state, "paused", "0")
            push(redis_server, *(of_run(i) for i in range(GAMMA)))

    planner(redis_server).plan(0, resumed_late)
    assert trained(redis_server, 0) == ["0:0", "0:1", "0:2"]


def beat(client: Any, done: threading.Event, **state: Any) -> None:
    """Heartbeats of rank 0 in this state until `done`."""

    def beats() -> None:
        while not done.wait(config().learner.wait_limit_s / 10):
            heartbeat_now(client, "f", "learner/0", state)

    threading.Thread(target=beats, daemon=True).start()


@pytest.mark.system
def test_a_rank_waits_while_rank_0_says_that_it_is_there(redis_server: RedisServer) -> None:
    client, limit, done = connect(redis_server.url), config().learner.wait_limit_s, threading.Event()
    beat(client, done, state="waiting")
    threading.Timer(1.5 * limit, done.set).start()
    began = time.monotonic()
    with pytest.raises(RunError, match="rank 0 is gone"):
        Reader(client, config(), 1, 2).read(0)
    assert time.monotonic() - began > 2 * limit


@pytest.mark.system
def test_a_rank_does_not_wait_for_a_rank_0_whose_heart_alone_goes_on(redis_server: RedisServer) -> None:
    client, done = connect(redis_server.url), threading.Event()
    beat(client, done, state="training", step=3)
    with pytest.raises(RunError, match="rank 0 is gone or stands still"):
        Reader(client, config(), 1, 2).read(4)
    done.set()


def test_the_coordinators_reason_stops_the_learner(redis_server: RedisServer) -> None:
    connect(redis_server.url).hset(Keys("f").state, "error", "generating failed 20 times")
    with pytest.raises(RunError, match="the coordinator stopped: generating failed 20 times"):
        planner(redis_server).plan(0, lambda: None)


def test_groups_go_to_ranks_balanced_by_cost_and_every_rank_finds_the_same_division() -> None:
    rng = np.random.default_rng(0)
    rows = [Row(f"0:{i}", f"{i}-0", 0, int(c)) for i, c in enumerate(rng.lognormal(8, 1, 60))]
    for ranks in (1, 2, 3, 8):
        shares = divide(rows, ranks)
        assert sorted(r.group for s in shares for r in s) == sorted(r.group for r in rows)
        loads = [sum(r.cost for r in s) for s in shares]
        assert max(loads) <= sum(loads) / ranks + max(r.cost for r in rows)
        assert shares == divide(list(rows), ranks)
