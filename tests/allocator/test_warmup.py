"""When the warm-up gate opens."""

import numpy as np
import pytest

from hora_rl.allocator.warmup import WarmUpGate

GOOD, BAD = 0.9, 0.8


def opened(gate: WarmUpGate, means: list[float]) -> list[bool]:
    """Whether the gate is open after each of the cycles."""
    found = []
    for mean in means:
        gate.observe(mean)
        found.append(gate.open)
    return found


@pytest.mark.parametrize(
    ("means", "cycle"),
    [
        ([GOOD, GOOD, GOOD], 3),
        ([GOOD, GOOD, BAD, GOOD, GOOD, GOOD], 6),
        ([BAD, GOOD, GOOD, GOOD, BAD, BAD], 4),
        ([0.85, 0.85, 0.85], 3),
        ([0.85 - 1e-6, GOOD, GOOD, 0.85 - 1e-6, GOOD], None),
        ([GOOD, BAD] * 5, None),
    ],
)
def test_the_gate_opens_after_three_good_cycles_and_stays_open(means: list[float], cycle: int | None) -> None:
    first = len(means) + 1 if cycle is None else cycle
    assert opened(WarmUpGate(), means) == [i >= first for i in range(1, len(means) + 1)]


def test_a_mean_of_shards_that_is_exactly_the_threshold_counts_however_it_rounds() -> None:
    rounded = float(np.mean([99 / 120, 98 / 120, 98 / 120, 113 / 120]))  # 408 of 480 are 0.85
    assert rounded < 0.85
    assert opened(WarmUpGate(), [rounded] * 3)[-1]
    one_less = float(np.mean([99 / 120, 98 / 120, 98 / 120, 112 / 120]))
    assert not opened(WarmUpGate(), [one_less] * 3)[-1]


def test_a_gate_that_is_off_is_open_from_the_start_and_takes_only_means_of_rewards() -> None:
    gate = WarmUpGate(enabled=False)
    assert gate.open
    assert opened(gate, [0.0]) == [True]
    for mean in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="mean must be finite"):
            gate.observe(mean)
