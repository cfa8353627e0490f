"""Rollouts of several turns: the gradient is that of their sampled tokens, each in the context it was sampled
in, however the batch is cut and shared out."""

import numpy as np
import pytest

from hora_rl.common.config import Objective
from hora_rl.common.errors import WireError
from hora_rl.common.live.queue import Entry
from hora_rl.common.load import load
from hora_rl.common.types import Group, Turn
from hora_rl.common.wire import encode_extra, encode_pre_rollouts
from hora_rl.learner.admission import Vocabulary, admitted
from hora_rl.learner.batch import measurable
from hora_rl.learner.estimator import Estimator
from hora_rl.learner.logprobs import Policy
from hora_rl.learner.sample import sequences
from tests.support.formula import apart, by_cut, by_formula
from tests.support.groups import group, in_turns, rollout
from tests.support.sharing import ALWAYS
from tests.support.tiny_qwen2 import tiny_qwen2

VOCABULARY, TEMPERATURE, LONGEST = 48, 0.7, 40
ESTIMATOR = Estimator(Objective(), {"accuracy": 0.5, "format": 0.5}, "accuracy", 5, LONGEST)


def policy() -> Policy:
    return Policy(tiny_qwen2(VOCABULARY))


def batch(anew: float) -> list[Group]:
    rng = np.random.default_rng(5)
    found = []
    for index, size in enumerate((2, 3, 9, 5)):
        made = [
            rollout(
                rng.integers(0, VOCABULARY, n),
                logprobs=-rng.exponential(3.0, n),
                success=j % 2 == 0,
                phase="A" if j == 0 else "B",
            )
            for j, n in enumerate(rng.integers(1, LONGEST + 1, size))
        ]
        rollouts = [in_turns(r, rng, anew, VOCABULARY) for r in made]
        found.append(group(index, rollouts, prompt=rng.integers(0, VOCABULARY, 4)))
    return found


@pytest.mark.parametrize("anew", [0.0, 0.5, 1.0])
def test_the_gradient_is_the_formulas_over_cuts_and_ranks(anew: float) -> None:
    groups = batch(anew)
    assert any(len(r.turns) > 2 for g in groups for r in g.rollouts)
    wanted = by_formula(policy(), groups, ESTIMATOR, TEMPERATURE)
    for budget, sharing, ranks in ((80, None, 1), (90, ALWAYS, 2), (1000, ALWAYS, 1), (1000, None, 3)):
        found = by_cut(policy(), groups, ESTIMATOR, TEMPERATURE, budget, sharing, ranks)
        assert apart(found, wanted) < 1e-5, (budget, sharing, ranks)


def test_each_sampled_token_is_in_one_sequence_once() -> None:
    for g in batch(0.5):
        for r in (r for r in g.rollouts if r.turns):
            found = list(sequences(g.prompt_tokens, r))
            assert len(found) == 1 + sum(t.anew for t in r.turns)
            np.testing.assert_array_equal(np.concatenate([s.tokens[s.places] for s in found]), r.tokens)
    sampled = [int(s.match.sum()) for s in measurable(batch(1.0), 0, 40)]
    assert sum(sampled) >= 40 > sum(sampled[:-1])


def admit(made: Group, *settings: str) -> Group:
    config = load("tiny", ["run.name=r", "rollout.max_response_tokens=5", *settings])
    messages = encode_pre_rollouts(made), encode_extra(made)
    return admitted(config, Vocabulary("t", VOCABULARY), None, Entry("1-0", made.id, made.batch), messages)


def test_turns_that_the_configuration_does_not_allow_are_refused() -> None:
    given = np.ones(30, np.int32)
    turns = (Turn(3, given[:0]), Turn(2, given))
    made = group(0, [rollout([1] * 5, turns=turns), rollout([1] * 5, phase="B", turns=turns)])
    assert admit(made, "environment.path=guess", "environment.max_given_tokens=30").rollouts[0].given == 30
    with pytest.raises(WireError, match=r"group 0:0: it has several turns, and environment.path is null"):
        admit(made)
    limit = "environment.max_given_tokens=1", "rollout.max_prompt_tokens=4"
    with pytest.raises(WireError, match=r"a sequence exceeds .* = 4 \+ 5 \+ 1 = 10 tokens"):
        admit(made, "environment.path=guess", *limit)
