"""Algorithm 1 for one shard, the one retry policy, and calls that travel together."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ray.serve.handle import DeploymentResponse

from hora_rl.actors.concurrency import BatchedCalls, cancel
from hora_rl.actors.coordinator import calls
from hora_rl.actors.coordinator import shard as phases
from hora_rl.actors.coordinator.calls import retry
from hora_rl.actors.coordinator.sampling import Sampler, prefetched, sample_seed
from hora_rl.actors.coordinator.shard import Allocation, Draw, Plan, Round, Shard
from hora_rl.common.errors import AwayTooLong, MissingWeights, NoRoom, RunError, StaleWeights
from hora_rl.common.types import Completion, Group, Prompt, SamplingRequest, Scored
from tests.support.groups import completion


def make_shard(n: int = 3, g0: int = 4, per_request: int = 16) -> Shard:
    prompts = tuple(Prompt(i, f"p{i}", str(i), np.array([1, 2, i], dtype=np.int32)) for i in range(n))
    return Shard("run", 5, 1, (0,) * n, prompts, g0, 7, "tok", per_request)


class World:
    """Answers of prompt i are right for the first i samples of every request."""

    def __init__(self) -> None:
        self.requests: list[SamplingRequest] = []
        self.running = 0

    async def generate(self, request: SamplingRequest) -> list[Completion]:
        self.requests.append(request)
        self.running += 1
        try:
            await asyncio.sleep(0.001 * (request.prompt.index + 1))
            right = request.prompt.index
            return [completion(text="right" if j < right else "wrong") for j in range(request.n)]
        finally:
            self.running -= 1

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
        right = [c.text == "right" for c in completions]
        return [Scored({"accuracy": float(r), "format": float(j % 4 > 0)}, r) for j, r in enumerate(right)]

    def divide(self, earlier: Sequence[Round], successes: Sequence[int]) -> Allocation:
        return Allocation(np.array([7, 2, 0]), "hit_utility", ((1.0, 1.0),) * 3)

    def sampler(self, shard: Shard) -> Sampler:
        return Sampler(shard, self.generate, self.score)


async def planned(shard: Shard, world: World) -> Plan:
    return await phases.phase_a(shard, world.sampler(shard), world.divide)


async def finish(shard: Shard, world: World, plan: Plan) -> list[Group]:
    return [g async for g in phases.phase_b(shard, plan, world.sampler(shard))]


async def collect(shard: Shard, world: World) -> list[Group]:
    return await finish(shard, world, await planned(shard, world))


async def test_groups_pool_both_phases_follow_the_allocation_and_leave_when_they_are_complete() -> None:
    world, shard = World(), make_shard()
    plan = await planned(shard, world)
    assert (plan.successes, plan.extra) == ((0, 1, 2), (7, 2, 0))
    assert plan.rewards == {"accuracy": 0.25, "format": 0.75}
    left = await finish(shard, world, plan)
    assert left[-1].prompt_index == 1
    groups = {g.prompt_index: g for g in left}
    sizes = {i: (g.pre_rollouts, g.extra, g.size) for i, g in groups.items()}
    assert sizes == {0: (4, 7, 11), 1: (4, 2, 6), 2: (4, 0, 4)}
    assert [r.phase for r in groups[1].rollouts] == ["A"] * 4 + ["B"] * 2
    assert groups[1].successes == 1
    assert groups[1].hits == 2
    assert groups[2].id == "0:2"


async def test_large_extra_is_split_into_requests_with_distinct_seeds() -> None:
    world = World()
    await collect(make_shard(per_request=3), world)
    sizes = [r.n for r in world.requests if r.prompt.index == 0]
    assert sorted(sizes) == [1, 1, 3, 3, 3]
    assert len({r.seed for r in world.requests}) == len(world.requests)


def test_requests_for_different_samples_have_different_seeds() -> None:
    asked = [
        (7, 0, 3, "B", 16),
        (8, 0, 3, "B", 16),  # another run
        (7, 1, 3, "B", 16),  # another epoch
        (7, 0, 4, "B", 16),
        (7, 0, 3, "A", 16),
        (7, 0, 3, "B", 32),
    ]
    assert len({sample_seed(*what) for what in asked * 2}) == len(asked), "and a retry has the same"


class BrokenVerifier(World):
    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
        raise RuntimeError("verifier gone")


async def test_an_error_of_either_phase_ends_the_shard_and_leaves_no_request_running() -> None:
    world = BrokenVerifier()
    with pytest.raises(RuntimeError, match="verifier gone"):
        await planned(make_shard(), world)
    assert world.running == 0
    plan = await planned(make_shard(), World())
    with pytest.raises(RuntimeError, match="verifier gone"):
        await finish(make_shard(), world, plan)
    assert world.running == 0


def even(n: int, g0: int, extra: int) -> list[Draw]:
    return [Draw(i, round_, 0, size) for round_, size in ((0, g0), (1, extra)) for i in range(n)]


class FirstPromptAlone(World):
    """Answers prompt 0; the others' answers never come."""

    async def generate(self, request: SamplingRequest) -> list[Completion]:
        if request.prompt.index == 0:
            return await super().generate(request)
        self.running += 1
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            self.running -= 1


async def test_what_was_begun_and_not_asked_for_is_cancelled() -> None:
    world = FirstPromptAlone()
    async with prefetched(world.sampler(make_shard()), even(3, 4, 2)) as sample:
        await sample(Draw(0, 0, 0, 4))
        assert world.running > 0
    assert world.running == 0


class OneShort(World):
    async def generate(self, request: SamplingRequest) -> list[Completion]:
        return (await super().generate(request))[:-1]


async def test_too_few_completions_are_an_error_and_never_wrong_answers() -> None:
    with pytest.raises(ValueError, match="prompt 0"):
        await collect(make_shard(), OneShort())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "LONGEST_PAUSE_S", 0.0)


async def asked(*answers: str | BaseException, attempts: int = 2, patient: bool = False) -> str:
    """`retry` of a replica with these answers, one after the other; an exception is raised."""
    left = list(answers)

    async def ask(before: int) -> str:
        assert before == len(answers) - len(left), "so that a retry goes elsewhere"
        answer = left.pop(0)
        if isinstance(answer, str):
            return answer
        raise answer

    return await retry(ask, "generating", attempts, limit_s=1.0, patient=patient)


async def test_a_request_is_asked_again_whatever_it_was_lost_to_a_cancelled_replica_too() -> None:
    lost = (ConnectionError("gone"), TimeoutError(), asyncio.CancelledError())
    assert await asked(*lost, "answer", attempts=4) == "answer"


async def test_a_full_replica_is_no_failed_try_nor_are_weights_that_somebody_sends() -> None:
    assert await asked(*[NoRoom("64 requests")] * 9, "answer", attempts=1) == "answer"
    assert await asked(*[StaleWeights("holds 10")] * 9, "answer", attempts=1, patient=True) == "answer"


@pytest.mark.parametrize(
    ("error", "n", "attempts", "raised"),
    [
        (ConnectionError("gone"), 1100, 1100, RunError),  # for hours
        (StaleWeights("holds 10, needs 19"), 9, 20, MissingWeights),  # that nobody sends
        (AwayTooLong("reward 'judge' was unavailable"), 1, 20, RunError),
    ],
)
async def test_the_last_try_says_what_it_was_for(
    error: Exception, n: int, attempts: int, raised: type[Exception]
) -> None:
    with pytest.raises(raised, match=f"generating failed.*{type(error).__name__}: {error}"):
        await asked(*[error] * n, "answer", attempts=attempts)


async def test_our_own_cancellation_goes_through_at_once_and_a_try_has_a_deadline() -> None:
    tries = 0

    async def ask(before: int) -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(60)

    task = asyncio.create_task(retry(ask, "generating", attempts=9, limit_s=60.0))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tries == 1
    with pytest.raises(RunError, match="TimeoutError"):
        await retry(ask, "generating", attempts=2, limit_s=0.01)


class Request(DeploymentResponse[Any]):
    """One of Serve's, without Serve: nobody answers it."""

    def __init__(self) -> None:
        self.ended = False

    def __await__(self) -> Any:
        return asyncio.sleep(60).__await__()

    def cancel(self) -> None:
        self.ended = True


async def test_a_replica_stops_work_for_which_nobody_waits_any_more() -> None:
    requests: list[Request] = []

    def ask(before: int) -> Request:
        requests.append(Request())
        return requests[-1]

    with pytest.raises(RunError, match="TimeoutError"):
        await retry(ask, "generating", 2, limit_s=0.05)
    asking = asyncio.create_task(retry(ask, "generating", 2, limit_s=60.0))
    await asyncio.sleep(0.01)
    await cancel([asking])
    assert [request.ended for request in requests] == [True] * 3


class Sent:
    """Answers n by 10·n, and remembers its calls. A call waits until `go` is set."""

    def __init__(self, fails: frozenset[int] = frozenset()) -> None:
        self.calls: list[list[int]] = []
        self.cancelled: list[list[int]] = []
        self.go = asyncio.Event()
        self._fails = fails

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.calls.append(list(items))
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(list(items))
            raise
        if self._fails & set(items):
            raise ConnectionError(f"lost {items}")
        return [10 * item for item in items]


async def test_calls_of_one_moment_travel_together_and_each_gets_its_own_answer() -> None:
    sent = Sent()
    sent.go.set()
    ask = BatchedCalls(sent, lambda n: n, most=6)
    assert await asyncio.gather(*(ask(n) for n in (3, 2, 1, 5, 9, 1))) == [30, 20, 10, 50, 90, 10]
    assert sent.calls == [[3, 2, 1], [5], [9], [1]]
    assert await ask(4) == 40
    assert sent.calls[4:] == [[4]], "a later one does not wait for company"


async def test_the_error_of_a_bundle_is_each_of_its_callers_and_nobody_elses() -> None:
    sent = Sent(fails=frozenset({2}))
    sent.go.set()
    ask = BatchedCalls(sent, lambda n: 1, most=2)
    found = await asyncio.gather(*(ask(n) for n in (1, 2, 3, 4)), return_exceptions=True)
    assert [str(f) for f in found] == ["lost [1, 2]", "lost [1, 2]", "30", "40"]


async def test_a_bundle_goes_on_for_those_who_still_wait_and_is_cancelled_when_nobody_does() -> None:
    sent = Sent()
    ask = BatchedCalls(sent, lambda n: 1, most=2)
    one, two, three, four = tasks = [asyncio.create_task(ask(n)) for n in (1, 2, 3, 4)]
    while len(sent.calls) < 2:
        await asyncio.sleep(0)
    for task in (one, three, four):
        task.cancel()
    await asyncio.wait([one, three, four])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sent.cancelled == [[3, 4]]
    sent.go.set()
    assert await two == 20
    assert [t.cancelled() for t in tasks] == [True, False, True, True]


async def test_a_call_that_answers_for_too_few_is_an_error_and_leaves_nobody_waiting() -> None:
    async def short(items: Sequence[int]) -> list[int]:
        return [0]

    ask = BatchedCalls(short, lambda n: 1, most=2)
    with pytest.raises(RuntimeError, match="2 items"):
        await asyncio.wait_for(asyncio.gather(ask(1), ask(2)), 5)


class TwoEach(World):
    def divide(self, earlier: Sequence[Round], successes: Sequence[int]) -> Allocation:
        return replace(super().divide(earlier, successes), extra=np.full(3, 2))


async def test_rollouts_begun_before_the_plan_are_those_that_two_phases_ask_for() -> None:
    barrier, at_once = TwoEach(), TwoEach()
    expected, shard = await collect(make_shard(), barrier), make_shard()
    async with prefetched(at_once.sampler(shard), even(3, 4, 2)) as sample:
        plan = await phases.phase_a(shard, sample, at_once.divide)
        found = [g async for g in phases.phase_b(shard, plan, sample)]
    asked = [sorted((r.prompt.index, r.n, r.seed) for r in w.requests) for w in (barrier, at_once)]
    assert asked[0] == asked[1]
    assert len(asked[1]) == 6, "each once"
    told = [sorted((g.id, g.size, g.successes, g.hits) for g in groups) for groups in (expected, found)]
    assert told[0] == told[1]
    assert [r.phase for r in found[0].rollouts] == ["A"] * 4 + ["B"] * 2


class InRounds(World):
    """Δ of three prompts in each of three rounds."""

    by_round = ([2, 1, 0], [0, 3, 1], [4, 0, 0])

    def divide(self, earlier: Sequence[Round], successes: Sequence[int]) -> Allocation:
        self.told = [*(r.successes for r in earlier), successes]
        extra = np.array(self.by_round[len(earlier)])
        return replace(super().divide(earlier, successes), extra=extra)


async def test_each_round_is_divided_by_what_was_found_before_it_and_pooled_into_the_group() -> None:
    world, shard = InRounds(), make_shard()
    plan = await planned(shard, world)
    while len(plan.rounds) < len(world.by_round):
        plan = await phases.next_round(shard, plan, world.sampler(shard), world.divide)
    groups = await finish(shard, world, plan)
    assert world.told == [(0, 1, 2), (0, 1, 0), (0, 1, 1)], "found in Phase A and in rounds 1 and 2"
    pooled = {g.prompt_index: (g.rounds, g.extra, g.successes, g.hits) for g in groups}
    assert pooled == {0: ((2, 0, 4), 6, 0, 0), 1: ((1, 3), 4, 1, 3), 2: ((0, 1), 1, 2, 3)}
    assert len({r.seed for r in world.requests}) == len(world.requests), "no samples are drawn twice"
