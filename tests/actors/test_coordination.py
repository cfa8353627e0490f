"""Coordinators and a learner that die at random moments, on a real Redis: nothing is lost, nothing is
doubled."""

import asyncio
import json
import random
from typing import Any

import pytest

from hora_rl.actors.coordinator.group_rewards import ranked
from hora_rl.actors.coordinator.leases import Leases
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.types import Group, Prompt
from tests.support.coordination import PROMPTS, config_of, keeps_its_lease, with_deaths
from tests.support.simulated import score_by_chance


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("seed", [0, 1])
async def test_every_group_is_trained_once_whoever_dies_when(
    redis_url: str, staleness: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{staleness}:{seed}")
    config = config_of(f"deaths-{staleness}-{seed}", staleness)
    if seed % 2:
        monkeypatch.setattr(Leases, "release", keeps_its_lease)
    await with_deaths(config, redis_url, chance, monkeypatch)


IN_ROUNDS = {"rollout.group_size": 10, "allocation.rounds": 4, "rollout.samples_per_request": 2}


@pytest.mark.parametrize("stop", ["none", "hit", "mixed"])
@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
async def test_every_round_is_divided_once_whoever_dies_when(
    redis_url: str, stop: str, staleness: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(f"{stop}:{staleness}:{seed}")
    config = config_of(
        f"rounds-{stop}-{staleness}-{seed}", staleness, steps=4, **IN_ROUNDS, **{"allocation.stop": stop}
    )
    if (seed + staleness) % 4 in (1, 2):
        monkeypatch.setattr(Leases, "release", keeps_its_lease)
    await with_deaths(config, redis_url, chance, monkeypatch, deaths=8, scoring=score_by_chance)
    for report in map(json.loads, connect(redis_url).hvals(Keys(config.run.name).shards)):
        assert [sum(r["extra"]) for r in report["rounds"]] == [PROMPTS // 3 * (10 - 2) // 4] * 4
        assert_stops(report, stop)


RANK = "own:by_length"


async def by_length(prompt: Prompt, group: Group) -> Group:
    """How many rollouts of its group are longer, for each."""
    await asyncio.sleep(0.005)
    lengths = [len(r.tokens) for r in group.rollouts]
    return ranked(group, [{RANK: float(sum(n < other for other in lengths))} for n in lengths])


@pytest.mark.parametrize("rounds", [1, 3])
async def test_every_rollout_is_ranked_in_its_whole_group_whoever_dies_when(
    redis_url: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"reward.weights": {"format": 0.0, "accuracy": 1.0, RANK: 0.5}, "allocation.rounds": rounds}
    chance, config = random.Random(rounds), config_of(f"ranked-{rounds}", 1, **more)
    monkeypatch.setattr(Leases, "release", keeps_its_lease)
    payloads = await with_deaths(config, redis_url, chance, monkeypatch, rank=by_length)
    assert any(g.extra for g in payloads.values())
    for g in payloads.values():
        lengths = [len(r.tokens) for r in g.rollouts]
        assert [r.rewards[RANK] for r in g.rollouts] == [sum(n < m for m in lengths) for n in lengths]
        assert {len(r.rewards) for r in g.rollouts} == {3}


def assert_stops(report: dict[str, Any], stop: str) -> None:
    """A prompt that needs no more got nothing while another of its shard could use it."""
    n = len(report["groups"])
    hits, trials = [0] * n, [report["trials"]] * n
    for division in report["rounds"]:
        hits = [a + b for a, b in zip(hits, division["successes"], strict=True)]
        wants = [h == 0 or (stop == "mixed" and h == t) for h, t in zip(hits, trials, strict=True)]
        if stop != "none" and any(wants):
            assert all(w or not extra for w, extra in zip(wants, division["extra"], strict=True))
        trials = [t + extra for t, extra in zip(trials, division["extra"], strict=True)]
