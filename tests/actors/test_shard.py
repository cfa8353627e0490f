import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from actors.coordinator.shard import Allocation, Shard, run_shard, sample_seed
from common.types import Completion, Group, Plan, Prompt, SamplingRequest, Scored, VersionSpan


def make_shard(n: int = 3, g0: int = 4, per_request: int = 16) -> Shard:
    prompts = tuple(Prompt(i, f"p{i}", str(i), np.array([1, 2, i], dtype=np.int32)) for i in range(n))
    return Shard("run", 5, 1, (0,) * n, prompts, g0, 7, "tok", per_request)


def completion(text: str, version: int = 0) -> Completion:
    tokens = np.array([3, 4], dtype=np.int32)
    return Completion(text, tokens, np.array([-0.5, -0.1], np.float32), "stop", (VersionSpan(version, 0, 2),))


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
            return [completion("right" if j < right else "wrong") for j in range(request.n)]
        finally:
            self.running -= 1

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
        return [
            Scored({"accuracy": float(c.text == "right"), "format": float(j % 4 > 0)}, c.text == "right")
            for j, c in enumerate(completions)
        ]

    async def allocate(self, prompts: Sequence[int], successes: np.ndarray) -> Allocation:
        self.successes = successes.tolist()
        extra = np.array([7, 2, 0])[: len(prompts)]
        return Allocation(extra, "hit_utility", tuple((1.0, 1.0) for _ in prompts))


def collect(shard: Shard, world: World, **more: object) -> list[Group]:
    async def run() -> list[Group]:
        return [g async for g in run_shard(shard, world.generate, world.score, world.allocate, **more)]  # type: ignore[arg-type]

    return asyncio.run(run())


def test_groups_pool_both_phases_and_their_sizes_follow_the_allocation() -> None:
    world = World()
    groups = {g.prompt_index: g for g in collect(make_shard(), world)}
    assert world.successes == [0, 1, 2]
    assert {i: (g.pre_rollouts, g.extra, g.size) for i, g in groups.items()} == {
        0: (4, 7, 11),
        1: (4, 2, 6),
        2: (4, 0, 4),
    }
    assert [r.phase for r in groups[1].rollouts] == ["A"] * 4 + ["B"] * 2
    assert groups[1].successes == 1
    assert groups[1].hits == 2
    assert groups[2].id == "0:2"


def test_groups_leave_in_order_of_completion() -> None:
    assert [g.prompt_index for g in collect(make_shard(), World())][-1] == 1


def test_large_extra_is_split_into_requests_with_distinct_seeds() -> None:
    world = World()
    collect(make_shard(per_request=3), world)
    sizes = [r.n for r in world.requests if r.prompt.index == 0]
    assert sorted(sizes) == [1, 1, 3, 3, 3]
    assert len({r.seed for r in world.requests}) == len(world.requests)


def test_a_retry_would_ask_with_the_same_seed() -> None:
    assert sample_seed(7, 0, 3, "B", 16) == sample_seed(7, 0, 3, "B", 16)


def test_requests_for_different_samples_have_different_seeds() -> None:
    asked = [
        (7, 0, 3, "B", 16),
        (8, 0, 3, "B", 16),  # another run
        (7, 1, 3, "B", 16),  # another epoch
        (7, 0, 4, "B", 16),
        (7, 0, 3, "A", 16),
        (7, 0, 3, "B", 32),
    ]
    assert len({sample_seed(*what) for what in asked}) == len(asked)


def test_a_restarted_shard_continues_its_plan_and_makes_no_delivered_group_again() -> None:
    plans: list[Plan] = []

    async def remember(plan: Plan) -> Plan:
        plans.append(plan)
        return plan

    first = World()
    collect(make_shard(), first, remember=remember)
    assert (plans[0].successes, plans[0].extra) == ((0, 1, 2), (7, 2, 0))
    assert plans[0].rewards == {"accuracy": 0.25, "format": 0.75}
    second = World()
    left = replace(plans[0], groups=tuple(g for g in plans[0].groups if g.id != "0:1"))
    groups = collect(make_shard(), second, plan=left)
    assert sorted(g.prompt_index for g in groups) == [0, 2]
    assert [r.n for r in second.requests] == [7], "only Phase B of prompt 0 is sampled"
    assert {g.prompt_index: g.size for g in groups} == {0: 11, 2: 4}


def test_an_error_ends_the_shard_and_leaves_no_request_running() -> None:
    world = World()

    async def broken(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
        raise RuntimeError("verifier gone")

    async def run() -> int:
        with pytest.raises(RuntimeError, match="verifier gone"):
            async for _ in run_shard(make_shard(), world.generate, broken, world.allocate):
                pass
        return world.running

    assert asyncio.run(run()) == 0


def test_too_few_completions_are_an_error_and_never_wrong_answers() -> None:
    world = World()

    async def short(request: SamplingRequest) -> list[Completion]:
        return (await world.generate(request))[:-1]

    async def run() -> None:
        async for _ in run_shard(make_shard(), short, world.score, world.allocate):
            pass

    with pytest.raises(ValueError, match="asked for 4 completions, got 3"):
        asyncio.run(run())
