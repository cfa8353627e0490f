"""Two ranks under ZeRO-3: a model that was loaded by part computes what one that was loaded whole does, bit
by bit: log-probs, gradients, norms and the next weights, the reference of a KL term included.

The stages gather every parameter here (persistence threshold 0), because small ones never are by default.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.families import model_of
from tests.support.ranks import cases_of, run_ranks
from tests.support.tiny_qwen2 import tiny_qwen2

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

RANK = """
import json, os, sys
import torch
from deepspeed.utils import safe_get_full_grad
from hora_rl.common.load import load
from hora_rl.learner import engine as module
from hora_rl.learner.device import set_device
from hora_rl.learner.engine import Engine
from hora_rl.learner.load_by_part import _Files
from tests.support.ranks import gather_everything
from tests.support.samples import random_micro_batch

rank, by_part = int(os.environ["RANK"]), module.load_by_part
reads, read = [], _Files.read
gather_everything()


def counted(files, name):
    reads.append(name)
    return read(files, name)


_Files.read = counted


def observe(config, whole):
    module.load_by_part = (lambda *rest: None) if whole else by_part
    reads.clear()
    engine = Engine(config, rank, torch.distributed.get_world_size())
    numbers = len(reads)
    vocabulary = engine.hf.config.vocab_size
    lengths = (24, 40) if rank else (32,)
    batch = [random_micro_batch(n, 10 * rank + i, vocabulary) for i, n in enumerate(lengths)]
    logprobs = engine._frozen(engine._engine, random_micro_batch(16, 5, vocabulary))[0]
    engine._accumulate(engine._tasks(engine._aligned(batch)))
    gradients = [safe_get_full_grad(p).clone() for p in engine.hf.parameters()]
    engine._engine.step()
    norms = [engine.step(batch).grad_norm for _ in range(2)]
    weights = {name: t.clone() for name, t in engine.whole()}
    buffers = {n: b.dtype for n, b in engine.hf.named_buffers()}
    return engine, numbers, [logprobs, *gradients], norms, weights, buffers


def shares(hf):
    "Elements of all parameters, and those that this rank holds: its shards and what is whole."
    own = list(hf.parameters())
    return [sum(p.ds_numel for p in own), sum(p.ds_tensor.numel() + p.numel() for p in own)]


for folder, dtype, kl in json.loads(sys.argv[1]):
    config = load("tiny", [
        f"model.path={folder}", f"model.dtype={dtype}", "learner.zero_stage=3", "learner.workers=2",
        "learner.logit_chunk=16", f"learner.objective.kl={kl}", "learner.optimizer.learning_rate=0.01",
    ])
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(set_device(config.learner, config.run.seed, rank))
    engine, reads_by_part, by_parts, norms, weights, buffers = observe(config, whole=False)
    _, reads_whole, wholes, wanted, whole_weights, whole_buffers = observe(config, whole=True)
    reference = engine._reference
    if rank == 0:
        print(json.dumps([[folder, dtype, kl], {
            "equal": [torch.equal(a, b) for a, b in zip(by_parts, wholes, strict=True)],
            "gradient": max(float(g.abs().max()) for g in by_parts[1:]),
            "norms": norms, "wanted": wanted,
            "weights": all(torch.equal(t, whole_weights[n]) for n, t in weights.items()),
            "buffers": [str(t) for t in buffers.values()], "same_buffers": buffers == whole_buffers,
            "shares": [shares(m) for m in [engine.hf, *([] if reference is None else [reference.module.hf])]],
            "reads": [reads_by_part, reads_whole],
        }]), flush=True)
    elif reads_by_part:
        sys.exit("rank 1 has read weights")
    torch.distributed.barrier()
"""
FAMILIES = ("qwen2", "granite")
Case = tuple[str, str, float]
CASES: list[Case] = [(f, "bfloat16", 0.0) for f in FAMILIES] + [("qwen2", "float32", 0.1)]


def write(family: str, folder: Path) -> Path:
    if family != "qwen2":
        model_of(family).save_pretrained(folder)
        return folder
    tiny_qwen2(512, hidden=64, initializer_range=0.1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("parts")
    paths = {family: str(write(family, folder / family)) for family in FAMILIES}
    cases = [(paths[family], dtype, kl) for family, dtype, kl in CASES]
    lines = cases_of(run_ranks(RANK, folder, json.dumps(cases)))
    return {(Path(c[0]).name, c[1], c[2]): values for c, values in lines}


@pytest.mark.parametrize("case", CASES)
def test_logprobs_gradients_norms_weights_and_buffers_are_those_of_the_whole_model(
    found: dict[Case, dict[str, Any]], case: Case
) -> None:
    one = found[case]
    assert all(one["equal"]), one
    assert one["gradient"] > 0
    assert one["norms"] == one["wanted"]
    assert min(one["norms"]) > 0
    assert one["weights"]
    assert one["same_buffers"]
    assert set(one["buffers"]) == {"torch.float32"}


@pytest.mark.parametrize("case", CASES)
def test_weights_are_read_once_and_each_rank_holds_its_half(
    found: dict[Case, dict[str, Any]], case: Case
) -> None:
    """Of the reference too. Halves are padded to be equal."""
    by_part, whole = found[case]["reads"]
    assert by_part > 0
    assert whole == 0
    shares = found[case]["shares"]
    assert len(shares) == 1 + (case[2] > 0)
    assert all(held <= 0.51 * elements for elements, held in shares), shares
