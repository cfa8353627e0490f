"""The arithmetic of a step, counted by hand."""

import pytest

from common.load import load
from deploy.preflight.estimate import GIB, ModelShape
from deploy.preflight.step_costs import arithmetic, said

FULL = ModelShape(1_000_000, 0, 2, 64, 256, 32, 1000)
ADAPTED = ModelShape(1_000_000, 10_000, 2, 64, 256, 32, 1000)
BASE = (
    "rollout.prompts_per_batch=8",
    "rollout.shards=1",
    "rollout.group_size=4",
    "rollout.pre_rollouts=2",
    "rollout.max_prompt_tokens=100",
    "rollout.max_response_tokens=100",
    "learner.tokens_per_microbatch=400",
)


def test_tokens_flops_and_what_travels() -> None:
    config = load("tiny", [*BASE, "learner.workers=2", "learner.zero_stage=2"])
    found = arithmetic(config, FULL)
    tokens = 32 * (50 + 50)
    attention = 2 * 64 * 100 * tokens
    assert (found.rollouts, found.tokens) == (32, tokens)
    assert found.flops == pytest.approx(6e6 * tokens + 6 * attention)
    assert found.sampling == pytest.approx(2e6 * tokens + 2 * attention)
    assert found.micro_batches == tokens / 800
    assert found.refill == 32 * (50 + 25), "all sequences of the batch run on the one replica, half done"
    assert found.published * GIB == pytest.approx(4e6)
    assert found.exchanged * GIB == pytest.approx(0.5 * 4e6 * (tokens / 800 + 1))


def test_an_adapter_costs_less_and_travels_alone() -> None:
    config = load("tiny", [*BASE, "learner.lora.rank=4", "learner.workers=2", "learner.zero_stage=3"])
    found, full = arithmetic(config, ADAPTED), arithmetic(load("tiny", list(BASE)), FULL)
    assert found.published * GIB == pytest.approx(4e4)
    assert 0.6 < found.flops / full.flops < 0.8
    assert found.exchanged * GIB == pytest.approx(4 * 0.5 * (2 * 4.04e6 + 4e4))
    assert full.exchanged == 0.0, "one rank"
    text = "\n".join(said(config, ADAPTED))
    assert "32 rollouts, 0.00 million tokens at a mean response of 50" in text
    assert "to each replica over file" in text
    assert "clear_cache recomputes at most 2,400 tokens of a replica" in text


def test_a_replica_recomputes_no_more_than_its_sequences() -> None:
    settings = [*BASE, "generator.max_sequences=4", "generator.replicas=2"]
    assert arithmetic(load("tiny", settings), FULL).refill == 4 * (50 + 25)
    kept = said(load("tiny", [*settings, "generator.clear_cache=false"]), FULL)
    assert "an update: generator.clear_cache is false, nothing is recomputed" in kept
