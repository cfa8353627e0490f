"""The gradient of a batch, also of rollouts of several turns, is the formula's, and that of every option the
one of a single micro-batch, however the batch is cut and shared out."""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from hora_rl.common.algorithms import LOSSES
from hora_rl.common.config import ObjectiveConfig
from hora_rl.common.errors import WireError
from hora_rl.common.live.staleness import Entry
from hora_rl.common.load import load
from hora_rl.common.types import Group, Turn
from hora_rl.common.wire import encode_extra, encode_pre_rollouts
from hora_rl.learner.feed.admission import Vocabulary, admitted
from hora_rl.learner.model.logprobs import Policy
from hora_rl.learner.rows.batch import measurable, samples_of
from hora_rl.learner.rows.estimator import Estimator
from hora_rl.learner.rows.packing import Sharing, sequences
from tests.support.formula import apart, by_cut, by_formula
from tests.support.groups import group, in_turns, rollout
from tests.support.samples import ALWAYS
from tests.support.tiny_qwen2 import tiny_qwen2

LONGEST, VOCABULARY, TEMPERATURE = 40, 64, 0.7
Cut = tuple[int, Sharing | None, int]  # tokens of a micro-batch, sharing of prompts, ranks


def ragged(rng: np.random.Generator, index: int, size: int, pre_rollouts: int = 1) -> Group:
    """A group of `size` rollouts, with signal where it has several."""
    rollouts = []
    for j in range(size):
        n, right = int(rng.integers(1, LONGEST + 1)), j == 0 or bool(rng.random() < 0.4)
        ids, logprobs, form = rng.integers(0, VOCABULARY, n), -rng.exponential(4.0, n), float(rng.random())
        made = {"finish_reason": "length" if n > 30 else "stop", "phase": "A" if j < pre_rollouts else "B"}
        made |= {"rewards": {"accuracy": float(right), "format": form}, "success": right}
        rollouts.append(rollout(ids, logprobs=logprobs, **made))
    prompt = rng.integers(0, VOCABULARY, int(rng.integers(1, 9)))
    return group(index, rollouts, prompt=prompt, pre_rollouts=pre_rollouts, size_as_if=size + index)


def batch(*sizes: int) -> list[Group]:
    """Groups of these sizes, and one without signal."""
    rng = np.random.default_rng(0)
    return [ragged(rng, i, n) for i, n in enumerate(sizes)] + [group(9, [rollout([3] * n) for n in (4, 9)])]


def policy() -> Policy:
    return Policy(tiny_qwen2(VOCABULARY))


def estimator(**objective: Any) -> Estimator:
    weights = {"accuracy": 0.6, "format": 0.4}
    return Estimator(ObjectiveConfig.model_validate(objective), weights, "accuracy", 4, LONGEST)


BATCH = batch(1, 2, 5, 23, 60)


@pytest.fixture(scope="module")
def expected() -> torch.Tensor:
    return by_formula(policy(), BATCH, estimator(), TEMPERATURE)


@pytest.mark.parametrize(
    "cut", [*product((48, 100, 777, 100_000), (None, ALWAYS), (1,)), (300, ALWAYS, 2), (300, ALWAYS, 4)]
)
def test_the_gradient_does_not_depend_on_micro_batches_or_ranks(cut: Cut, expected: torch.Tensor) -> None:
    assert apart(by_cut(policy(), BATCH, estimator(), TEMPERATURE, *cut), expected) < 1e-5


@pytest.mark.parametrize("sharing", [None, ALWAYS])
def test_the_gradient_does_not_depend_on_padding(sharing: Sharing | None, expected: torch.Tensor) -> None:
    assert apart(by_cut(policy(), BATCH, estimator(), TEMPERATURE, 777, sharing, 1, 64), expected) < 1e-5


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("normalisation", ["constant", "sequence"])
@pytest.mark.parametrize("importance", ["token_truncate", "token_mask", "sequence_mask", "none"])
def test_every_estimator_is_its_formula(advantage: str, normalisation: str, importance: str) -> None:
    chosen = estimator(advantage=advantage, normalisation=normalisation, importance=importance)
    groups = batch(1, 2, 5)
    wanted = by_formula(policy(), groups, chosen, TEMPERATURE)
    assert apart(by_cut(policy(), groups, chosen, TEMPERATURE, 300, ALWAYS), wanted) < 1e-5


def test_groups_of_one_and_of_equal_rewards_contribute_exactly_nothing() -> None:
    assert samples_of(batch(1), estimator(), 2, version=0) == []


OPTIONS: list[dict[str, Any]] = [
    {"advantage": "max_rl"},
    {"advantage": "likelihood", "baseline": "wald"},
    {"advantage": "pass_at_k", "k": 2},
    {"advantage": "pkpo", "k": 2},
    {"advantage": "weighted_reinforce"},
    {"advantage": "shrunken(3, 0.5)"},
    {"normalisation": "token"},
    {"normalisation": "token", "overlong": "mask"},
    {"overlong": "soft"},
    {"group_weight": "sqrt_size"},
    {"group_weight": "inverse_sqrt_size"},
    {"group_weight": "difficulty"},
    {"group_weight": {"as_if": "hit_utility"}},
    *({"loss": loss} for loss in LOSSES),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_no_option_depends_on_the_cut_or_on_the_ranks(options: dict[str, Any]) -> None:
    chosen, rng = estimator(**options), np.random.default_rng(0)
    groups = [ragged(rng, i, size, pre_rollouts=2) for i, size in enumerate((2, 3, 9, 4))]
    expected = by_cut(policy(), groups, chosen, TEMPERATURE, 100_000, None, 1)
    assert expected.norm() > 0
    for cut in ((60, None, 2), (90, ALWAYS, 4), (1000, ALWAYS, 1)):
        assert apart(by_cut(policy(), groups, chosen, TEMPERATURE, *cut), expected) < 1e-5, cut


def in_several_turns(anew: float) -> list[Group]:
    rng = np.random.default_rng(5)
    groups = [ragged(rng, i, size) for i, size in enumerate((2, 3, 9, 5))]
    cut = partial(in_turns, rng=rng, anew=anew, vocabulary=VOCABULARY)
    return [replace(g, rollouts=tuple(map(cut, g.rollouts))) for g in groups]


@pytest.mark.parametrize("anew", [0.0, 0.5, 1.0])
def test_the_gradient_of_turns_is_the_formulas_over_cuts_and_ranks(anew: float) -> None:
    groups = in_several_turns(anew)
    assert any(len(r.turns) > 2 for g in groups for r in g.rollouts)
    wanted = by_formula(policy(), groups, estimator(), TEMPERATURE)
    for cut in ((80, None, 1), (90, ALWAYS, 2), (1000, ALWAYS, 1), (1000, None, 3)):
        assert apart(by_cut(policy(), groups, estimator(), TEMPERATURE, *cut), wanted) < 1e-5, cut


def test_each_sampled_token_is_in_one_sequence_once() -> None:
    for g in in_several_turns(0.5):
        for r in (r for r in g.rollouts if r.turns):
            result = list(sequences(g.prompt_tokens, r))
            assert len(result) == 1 + sum(t.anew for t in r.turns)
            np.testing.assert_array_equal(np.concatenate([s.tokens[s.places] for s in result]), r.tokens)
    sampled = [int(s.match.sum()) for s in measurable(in_several_turns(1.0), 0, 40)]
    assert sum(sampled) >= 40 > sum(sampled[:-1])


def admit(made: Group, *settings: str) -> Group:
    config = load("tiny", ["run.name=r", "rollout.max_response_tokens=5", *settings])
    messages = encode_pre_rollouts(made), encode_extra(made)
    return admitted(config, Vocabulary("t", VOCABULARY), None, Entry("1-0", made.id, made.batch), messages)


def test_turns_that_the_configuration_does_not_allow_are_refused() -> None:
    context = np.ones(30, np.int32)
    turns = (Turn(3, context[:0]), Turn(2, context))
    made = group(0, [rollout([1] * 5, turns=turns), rollout([1] * 5, phase="B", turns=turns)])
    admitted = admit(made, "environment.path=guess", "environment.max_given_tokens=30")
    assert admitted.rollouts[0].context_tokens == 30
    with pytest.raises(WireError, match=r"group 0:0: it has several turns, and environment.path is null"):
        admit(made)
    limit = "environment.max_given_tokens=1", "rollout.max_prompt_tokens=4"
    with pytest.raises(WireError, match=r"a sequence exceeds .* = 4 \+ 5 \+ 1 = 10 tokens"):
        admit(made, "environment.path=guess", *limit)
