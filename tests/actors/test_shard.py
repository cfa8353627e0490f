import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from hora_rl.actors.coordinator import shard as phases
from hora_rl.actors.coordinator.sampling import Sampler, prefetched, sample_seed
from hora_rl.actors.coordinator.shard import Allocation, Draw, Plan, Round, Shard
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
    with pytest.raises(ValueError, match="asked for 4 completions, got 3"):
        await collect(make_shard(), OneShort())
