"""The staleness rule on a plain coroutine of events with simulated durations."""

import heapq
import random

import pytest

from hora_rl.common.live.staleness import Entry, may_start, select_for_step


def simulate(rng: random.Random, gamma: int, shards: int, staleness: int, steps: int) -> list[list[Entry]]:
    """Producers with several shards in flight and a learner, of random speed; the groups of each step."""
    per_shard, in_flight = gamma // shards, rng.randint(1, 2 * shards)
    todo = [(b, s) for b in range(steps) for s in range(shards)]
    events: list[tuple[float, int, str, object]] = []
    ready: list[Entry] = []
    trained: list[list[Entry]] = []
    version, step, busy, running, clock, serial = 0, 0, False, 0, 0.0, 0

    def after(seconds: float, kind: str, what: object) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(events, (clock + seconds, serial, kind, what))

    while len(trained) < steps:
        while todo and running < in_flight and may_start(todo[0][0], version, staleness):
            batch, shard = todo.pop(0)
            running += 1
            for i in range(per_shard):
                after(rng.expovariate(1.0), "group", Entry(f"{serial}", f"{batch}:{shard}:{i}", batch))
            after(8.0 * rng.random(), "shard", None)
        if not busy:
            overdue = sum(r.batch <= step - staleness for groups in trained for r in groups)
            chosen = select_for_step(step, ready, gamma, staleness, overdue)
            if chosen is not None:
                ready = [r for r in ready if r not in chosen]
                trained.append(chosen)
                step, busy = step + 1, True
                after(rng.expovariate(0.5), "trained", step)
        assert events or len(trained) == steps, "deadlock: nothing is under way and a step is missing"
        if not events:
            break
        clock, _, kind, what = heapq.heappop(events)
        if kind == "group":
            assert isinstance(what, Entry)
            ready.append(what)
        elif kind == "shard":
            running -= 1
        else:
            assert isinstance(what, int)
            version, busy = what, False
    return trained


@pytest.mark.parametrize("staleness", range(5))
def test_the_bound_holds_and_every_group_is_trained_once_on_random_schedules(staleness: int) -> None:
    for seed in range(500):
        rng = random.Random(f"{staleness}:{seed}")
        shards = rng.choice([1, 2, 3, 4])
        gamma, steps = shards * rng.randint(1, 4), rng.randint(1, 8)
        trained = simulate(rng, gamma, shards, staleness, steps)
        assert [len(groups) for groups in trained] == [gamma] * steps
        everything = [r.group for groups in trained for r in groups]
        assert len(set(everything)) == len(everything) == gamma * steps
        for step, groups in enumerate(trained):
            assert all(step - r.batch <= staleness for r in groups)
            if staleness == 0:
                assert all(r.batch == step for r in groups)
