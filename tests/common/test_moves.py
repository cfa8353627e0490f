"""Which updates moved the policy too far."""

import pytest

from hora_rl.common.records import moved, moves

Metrics = dict[str, float | None]


def at(step: int, entropy: float | None, capped: float | None = 0.0) -> Metrics:
    return {"step": step, "entropy/trained": entropy, "importance/capped": capped}


@pytest.mark.parametrize(
    ("before", "now", "far"),
    [
        ((1.12, 0.0), (0.55, 0.0), True),
        ((1.12, 0.0), (0.70, 0.0), False),
        ((0.55, 0.0), (1.12, 0.0), False),
        ((0.31, 0.0), (0.08, 0.0), False),  # a small one halves from batch to batch
        ((1.12, 0.0), (1.10, 0.12), True),
        ((1.12, 0.5), (1.10, 0.01), False),
        ((None, None), (0.5, None), False),
        ((1.12, 0.0), (None, 0.0), False),  # no token was trained
    ],
)
def test_an_entropy_that_halves_or_weights_at_their_cap_are_a_move(before, now, far) -> None:
    assert bool(moved(at(0, *before), at(1, *now))) is far


def test_every_move_of_a_run_is_named_by_its_step() -> None:
    assert moved({}, at(0, 0.01)) == ""
    assert moves([]) == moves([at(0, 0.01)]) == [], "a first step is compared with nothing"
    warnings = moves([at(0, 1.12), at(1, 0.55), at(2, 0.5), at(3, 0.2), at(4, 0.2, 0.3)])
    assert [text.partition(":")[0] for text in warnings] == ["step 1", "step 3", "step 4"]
    assert all("learner.optimizer.warmup_steps" in text for text in warnings)
