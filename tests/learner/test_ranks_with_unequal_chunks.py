"""Ranks whose micro-batches have different numbers of head chunks take the same step, under ZeRO 2 and 3.

The head has 2,048 x 128 elements: above DeepSpeed's persistence threshold of 100,000, so ZeRO 3 does gather
it.
"""

import json
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.ranks import cases_of, run_ranks
from tests.support.tiny_qwen2 import tiny_qwen2

pytestmark = [pytest.mark.system, pytest.mark.core, pytest.mark.timeout(300)]
# Completion tokens of each micro-batch, by rank: 4 + 3 + 4 chunks of 16 against 4 + 2 and an empty
# micro-batch.
TOKENS = [[64, 48, 64], [64, 32]]

RANK = """
import json, os, sys
import numpy as np
import torch
from hora_rl.common.load import load
from hora_rl.learner.batch import make_micro_batch
from hora_rl.learner.device import set_device
from hora_rl.learner.engine import Engine
from tests.support.samples import sample

tokens, cases = json.loads(sys.argv[1]), json.loads(sys.argv[2])
rank = int(os.environ["RANK"])


def micro(length, seed):
    # Two completions after one prompt: on rank 0 they share it, on rank 1 each is alone.
    ids = np.random.default_rng(seed).integers(0, 2048, length + 4)
    row = [sample(ids[:4], part, -7.0, (-1.0) ** seed, 0.01) for part in np.split(ids[4:], 2)]
    return make_micro_batch([row] if rank == 0 else [[s] for s in row])


def count_gathers(head, gathered):
    gather = head.all_gather_coalesced

    def counted(params, *args, **kwargs):
        gathered.append(any(p is head for p in params))
        return gather(params, *args, **kwargs)

    for parameter in engine.hf.parameters():
        parameter.all_gather_coalesced = counted


for case in cases:
    folder, stage, checkpointing, kl = case
    config = load("tiny", [
        f"model.path={folder}", f"learner.zero_stage={stage}", "learner.workers=2", "learner.logit_chunk=16",
        f"learner.gradient_checkpointing={str(checkpointing).lower()}", f"learner.objective.kl={kl}",
    ])
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(set_device(config.learner, config.run.seed, rank))
    engine, gathered, found = Engine(config, rank, 2), [], []
    if stage == 3:
        count_gathers(engine.hf.get_output_embeddings().weight, gathered)
    for step in range(3):
        gathered.clear()
        update = engine.step([micro(n, 10 * rank + i) for i, n in enumerate(tokens[rank])])
        found.append([update.grad_norm, sum(gathered), update.applied])
    if rank == 0:
        print(json.dumps([case, found]), flush=True)
    torch.distributed.barrier()
"""


class Step(NamedTuple):
    norm: float
    gathers: int  # of the head, over the whole step
    applied: bool


Case = tuple[str, int, bool, float]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, list[Step]]:
    """Three steps on two ranks of every case: (tied or untied, ZeRO stage, gradient checkpointing, KL
    coefficient)."""
    folder = tmp_path_factory.mktemp("models")
    for kind in ("tied", "untied"):
        write_model(folder / kind, tied=kind == "tied")
    cases = [
        (str(folder / kind), stage, on, 0.0)
        for kind, stage, on in product(("tied", "untied"), (2, 3), (False, True))
    ]
    cases += [(str(folder / "tied"), stage, False, 0.1) for stage in (2, 3)]
    lines = cases_of(run_ranks(RANK, folder, json.dumps(TOKENS), json.dumps(cases)))
    print(*lines, sep="\n")
    return {(Path(case[0]).name, *case[1:]): [Step(*s) for s in values] for case, values in lines}


def write_model(folder: Path, *, tied: bool) -> None:
    tiny_qwen2(2048, hidden=128, tie_word_embeddings=tied, initializer_range=0.1).save_pretrained(folder)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_zero_3_takes_the_step_of_zero_2(
    steps: dict[Case, list[Step]], kind: str, checkpointing: bool
) -> None:
    plain = steps[kind, 2, False, 0.0]
    for stage in (2, 3):
        found = steps[kind, stage, checkpointing, 0.0]
        assert all(s.applied for s in found)
        assert [s.norm for s in found] == pytest.approx([s.norm for s in plain], rel=1e-4)
    assert plain[0].norm > 0


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_the_head_is_gathered_once_a_pass_and_not_once_a_chunk(
    steps: dict[Case, list[Step]], kind: str, checkpointing: bool
) -> None:
    first, *later = steps[kind, 3, checkpointing, 0.0]
    assert (
        1 <= first.gathers <= 2 * 3
    )  # forward and backward of three micro-batches, before DeepSpeed has a trace
    assert all(
        1 <= step.gathers <= 3 for step in later
    )  # the backward pass begins where the forward pass ended


def test_the_kl_term_is_that_of_zero_2(steps: dict[Case, list[Step]]) -> None:
    wanted, found, without = (
        steps["tied", *case] for case in ((2, False, 0.1), (3, False, 0.1), (2, False, 0.0))
    )
    assert [s.norm for s in found] == pytest.approx([s.norm for s in wanted], rel=1e-4)
    # The reference is the policy before the first step, so that the term acts from the second on.
    assert wanted[0].norm == pytest.approx(without[0].norm, rel=1e-4)
    assert abs(wanted[2].norm / without[2].norm - 1) > 1e-3
