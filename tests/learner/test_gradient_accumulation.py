"""In 16 bits gradients are added up in float32 over micro-batches, at every ZeRO stage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hora_rl.common.config import Learner
from hora_rl.learner.engine import effective_stage

ROOT = Path(__file__).parents[2]
ROUNDING = 2.0**-9  # relative size of bfloat16's rounding


@pytest.mark.parametrize(("dtype", "used"), [("float32", 0), ("bfloat16", 2), ("float16", 2)])
def test_stage_0_is_for_float32(dtype: str, used: int) -> None:
    assert effective_stage(Learner(zero_stage=0), dtype) == used
    assert effective_stage(Learner(zero_stage=3), dtype) == 3


@pytest.mark.system
@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_64_micro_batches_add_up_as_one_sum_in_float64(ranks: int) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    ran = subprocess.run(
        [*launcher, "-m", "tests.support.gradient_accumulation", "--counts", "64"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"dtype"')]
    assert {(row["stage"], row["alike"]) for row in rows} == {
        (s, a) for s in (1, 2, 3) for a in (True, False)
    }
    for row in rows:
        assert row["own dtype"] > 2 * ROUNDING, "what is measured is there without float32"
        # Stages 2 and 3 send each micro-batch's gradient in 16 bits, and add up what arrives in float32.
        roundings = 2 if ranks > 1 and row["stage"] > 1 else 1
        assert row["learner"] < roundings * ROUNDING, "only what is sent is rounded"
