"""In 16 bits gradients are added up in float32 over micro-batches, at every ZeRO stage."""

from pathlib import Path

import pytest

from hora_rl.common.config import Learner
from hora_rl.learner.engine import effective_stage
from tests.support.ranks import cases_of, run_ranks

SCRIPT = "from tests.support.gradient_accumulation import main; main()"
ROUNDING = 2.0**-9  # relative size of bfloat16's rounding


@pytest.mark.parametrize(("dtype", "used"), [("float32", 0), ("bfloat16", 2), ("float16", 2)])
def test_stage_0_is_for_float32(dtype: str, used: int) -> None:
    assert effective_stage(Learner(zero_stage=0), dtype) == used
    assert effective_stage(Learner(zero_stage=3), dtype) == 3


@pytest.mark.system
@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_64_micro_batches_add_up_as_one_sum_in_float64(tmp_path: Path, ranks: int) -> None:
    rows = cases_of(run_ranks(SCRIPT, tmp_path, ranks=ranks, limit_s=380.0))
    assert sorted(case for case, _ in rows) == [[s, a] for s in (1, 2, 3) for a in (False, True)]
    for (stage, _), errors in rows:
        assert errors["own dtype"] > 2 * ROUNDING, "what is measured is there without float32"
        # Stages 2 and 3 send each micro-batch's gradient in 16 bits, and add up what arrives in float32.
        roundings = 2 if ranks > 1 and stage > 1 else 1
        assert errors["learner"] < roundings * ROUNDING, "only what is sent is rounded"
