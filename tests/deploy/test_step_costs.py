"""The arithmetic of a step, counted by hand."""

import re

import pytest

from hora_rl.common.load import load
from hora_rl.deploy.checks.estimate import GIB, Estimate, ModelShape
from hora_rl.deploy.checks.step_costs import (
    BANDWIDTH,
    REACHED,
    arithmetic,
    generator_seconds,
    said,
    step_seconds,
)

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
    found = arithmetic(Estimate(config, FULL))
    tokens, computed = 32 * (50 + 50), 8 * (50 + 4 * 50)
    attention = 2 * 64 * 100 * tokens
    pairs = 2 * 64 * 8 * (4 * 100**2 - 3 * 50**2)
    assert (found.rollouts, found.tokens, found.computed) == (32, tokens, computed)
    assert found.flops == pytest.approx(6e6 * computed + 6 * pairs), "a prompt once for its four completions"
    assert found.sampling == pytest.approx(2e6 * tokens + 2 * attention)
    assert found.micro_batches == computed / 800
    assert found.published * GIB == pytest.approx(4e6)


def test_an_adapter_costs_less_and_travels_alone() -> None:
    config = load("tiny", [*BASE, "learner.lora.rank=4", "learner.workers=2", "learner.zero_stage=3"])
    found = arithmetic(Estimate(config, ADAPTED))
    full = arithmetic(Estimate(load("tiny", list(BASE)), FULL))
    assert found.published * GIB == pytest.approx(4e4)
    assert 0.6 < found.flops / full.flops < 0.8


SEVEN = ModelShape(7_615_616_512, 0, 28, 3584, 18_944, 512, 152_064)
PAPER = (
    "model.dtype=bfloat16",
    "rollout.prompts_per_batch=60",
    "rollout.group_size=32",
    "rollout.max_prompt_tokens=2048",
    "rollout.max_response_tokens=2048",
    "learner.tokens_per_microbatch=16384",
    "generator.max_batched_tokens=8192",
)


def test_decoding_is_bound_by_what_it_reads() -> None:
    config = load("tiny", [*PAPER, "generator.replicas=4", "generator.max_sequences=128"])
    weights, entry, context = 2 * 7_615_616_512, 2 * 28 * 512 * 2, 1024 + 512
    step = (weights + 128 * context * entry) / (REACHED * BANDWIDTH["H100"])
    decoding = step * 1024 * 60 * 32 / (4 * 128)
    assert generator_seconds(Estimate(config, SEVEN)) == pytest.approx(decoding, rel=0.02), (
        "and little for prompts"
    )
    twice = load("tiny", [*PAPER, "generator.replicas=8", "generator.max_sequences=128"])
    assert generator_seconds(Estimate(twice, SEVEN)) == pytest.approx(decoding / 2, rel=0.02)


def test_sides_that_wait_for_each_other_add_up() -> None:
    settings = [*PAPER, "generator.replicas=4", "learner.workers=4"]
    in_turn, overlapped = (
        step_seconds(Estimate(load("tiny", [*settings, f"rollout.max_staleness={s}"]), SEVEN)) for s in (0, 1)
    )
    assert overlapped < in_turn < 2 * overlapped


def test_seconds_are_said_of_cards_and_never_of_a_cpu() -> None:
    estimate = Estimate(load("tiny", list(PAPER)), SEVEN)
    cpu, card = (" ".join(said(estimate, device)) for device in (None, "H100"))
    assert " s expected" in card
    assert not re.search(r"[0-9] s ", cpu)
    assert "TFLOP/s" not in cpu
