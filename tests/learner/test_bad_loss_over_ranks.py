"""A loss that is not finite on one rank is a skipped step on every rank, whatever the ZeRO stage."""

from pathlib import Path

import pytest

from tests.support.ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RANK = """
import os, sys
import torch
from hora_rl.common.load import load
from hora_rl.learner.device import set_device
from hora_rl.learner.engine import Engine
from tests.learner.test_bad_input import micro_batch

stage, rank = sys.argv[1], int(os.environ["RANK"])
config = load("tiny", [f"learner.zero_stage={stage}", "learner.workers=2"])
torch.distributed.init_process_group(set_device(config.learner, config.run.seed, rank))
engine = Engine(config, rank, 2)

def weights():
    return {name: tensor.clone() for name, tensor in engine.gathered()}

assert engine.step([micro_batch(1.0)]).applied
before = weights()
refused = engine.step([micro_batch(float("nan") if rank == 1 else 1.0)])
after = weights()
again = engine.step([micro_batch(1.0)])
moved = weights()
assert not refused.applied, "one rank's loss was not finite"
assert all(torch.equal(before[n], after[n]) for n in before)
assert again.applied and again.learning_rate == refused.learning_rate
assert any(not torch.equal(before[n], moved[n]) for n in before)
assert all(bool(torch.isfinite(t).all()) for t in moved.values())
torch.distributed.barrier()
print(f"rank {rank} done", flush=True)
"""


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_ranks_bad_loss_leaves_every_ranks_weights_and_schedule_alone(tmp_path: Path, stage: int) -> None:
    printed = run_ranks(RANK, tmp_path, str(stage))
    assert "rank 0 done" in printed
    assert "rank 1 done" in printed
