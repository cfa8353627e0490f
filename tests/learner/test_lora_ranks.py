"""Two ranks train an adapter under ZeRO 0, 2 and 3: the same steps, and a checkpoint from which the next
one is repeated bit by bit.

The stages gather every parameter here (persistence threshold 0): by default one as small as an adapter's
never is.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hora_rl.learner.export import _weights
from tests.learner.test_ranks_with_unequal_chunks import TOKENS, write_model
from tests.support.ranks import cases_of, run_ranks

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

RANK = """
import json, os, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from hora_rl.common.load import load
from hora_rl.learner.device import set_device
from hora_rl.learner.engine import Engine
from tests.support.ranks import gather_everything
from tests.support.samples import random_micro_batch

folder, tokens, cases = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
rank = int(os.environ["RANK"])
gather_everything()


def step(engine):
    batch = [random_micro_batch(n, 10 * rank + i, 2048) for i, n in enumerate(tokens[rank])]
    return engine.step(batch).grad_norm


def published(engine):
    return {name: t.clone() for name, t in engine.gathered()}


for number, (stage, checkpointing, kl) in enumerate(cases):
    config = load("tiny", [
        f"model.path={folder / 'model'}", f"learner.zero_stage={stage}", "learner.workers=2",
        "learner.lora.rank=4", "learner.lora.alpha=8", "learner.optimizer.learning_rate=0.01",
        f"learner.gradient_checkpointing={str(checkpointing).lower()}", f"learner.objective.kl={kl}",
        "learner.logit_chunk=16",
    ])
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(set_device(config.learner, config.run.seed, rank))
    engine = Engine(config, rank, 2)
    norms = [step(engine), step(engine)]
    place = folder / str(number)
    write = engine.save(place, "state")
    norms.append(step(engine))  # what is written aside is the state before this step
    write()
    torch.distributed.barrier()
    after = published(engine)
    again = Engine(config, rank, 2)
    again.load(place, "state")
    restored = published(again)
    repeated = step(again)
    last = published(again)
    same = repeated == norms[-1] and all(torch.equal(last[n], after[n]) for n in after)
    if rank == 0:
        save_file(restored, place / "restored.safetensors")
        print(json.dumps([[stage, checkpointing, kl], [norms, same]]), flush=True)
    torch.distributed.barrier()
"""
Case = tuple[int, bool, float]
Found = tuple[Path, dict[Case, tuple[list[float], bool]]]
CASES: list[Case] = [(0, False, 0.1), (2, False, 0.0), (2, False, 0.1), (3, True, 0.1)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """(folder of all checkpoints, [gradient norms of three steps, whether the third was repeated] by
    case)."""
    folder = tmp_path_factory.mktemp("lora")
    write_model(folder / "model", tied=True)
    lines = cases_of(run_ranks(RANK, folder, str(folder), json.dumps(TOKENS), json.dumps(CASES)))
    print(*lines, sep="\n")
    return folder, {(c[0], c[1], c[2]): (f[0], f[1]) for c, f in lines}


def test_every_stage_takes_the_same_steps(found: Found) -> None:
    norms = {case: n for case, (n, _) in found[1].items() if case[2]}
    first = norms[0, False, 0.1]
    assert first[0] > 0
    assert all(n == pytest.approx(first, rel=1e-4) for n in norms.values()), norms


def test_the_reference_is_the_policy_without_its_adapter(found: Found) -> None:
    """It is the policy itself before the first step, so the KL term acts from the second on."""
    without, with_kl = (found[1][2, False, kl][0] for kl in (0.0, 0.1))
    assert with_kl[0] == pytest.approx(without[0], rel=1e-4)
    assert abs(with_kl[2] / without[2] - 1) > 1e-3


def test_a_step_after_a_checkpoint_is_repeated_bit_by_bit(found: Found) -> None:
    assert all(same for _, same in found[1].values()), found[1]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_checkpoint_holds_the_adapter_and_nothing_of_the_base(found: Found, number: int) -> None:
    folder = found[0] / str(number)
    restored = load_file(folder / "restored.safetensors")
    weights = _weights(folder / "state")
    assert len(weights) == len(restored) == 2 * 7 * 2
    assert sorted(t.sum().item() for t in weights.values()) == sorted(
        t.sum().item() for t in restored.values()
    )
    size = sum(f.stat().st_size for f in (folder / "state").rglob("*") if f.is_file())
    base = sum(t.numel() for t in load_file(found[0] / "model" / "model.safetensors").values())
    assert size < 4 * base, "bytes of weights and optimizer, against those of the base's weights alone"
    assert all(torch.isfinite(t).all() for t in weights.values())
