"""Two ranks and ZeRO stages against each other, each group of ranks started once.

The head of `write_model` has 2,048 x 128 elements: above DeepSpeed's persistence threshold of 100,000, so
ZeRO 3 does gather it. Adapters and parts are smaller: there every parameter is gathered (threshold 0).
"""

import json
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from hora_rl.learner.checkpoints.export import _weights
from tests.support.families import model_of
from tests.support.ranks import cases_of, run_ranks
from tests.support.tiny_qwen2 import tiny_qwen2

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
# Completion tokens of each micro-batch, by rank: 4 + 3 + 4 chunks of 16 against 4 + 2 and an empty
# micro-batch.
TOKENS = [[64, 48, 64], [64, 32]]

CHUNKS = """
import json, os, sys
import numpy as np
import torch
from hora_rl.common.load import load
from hora_rl.learner.rows.batch import make_micro_batch
from hora_rl.learner.ranks import set_device
from hora_rl.learner.model.engine import Engine
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


Steps = dict[tuple[str, int, bool, float], list[Step]]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """Three steps on two ranks by (tied or untied, ZeRO stage, gradient checkpointing, KL coefficient)."""
    folder = tmp_path_factory.mktemp("models")
    for kind in ("tied", "untied"):
        write_model(folder / kind, tied=kind == "tied")
    tied, untied = str(folder / "tied"), str(folder / "untied")
    cases = [*product((tied, untied), (2, 3), (False, True), [0.0]), *((tied, s, False, 0.1) for s in (2, 3))]
    lines = cases_of(run_ranks(CHUNKS, folder, json.dumps(TOKENS), json.dumps(cases)))
    print(*lines, sep="\n")
    return {(Path(case[0]).name, *case[1:]): [Step(*s) for s in values] for case, values in lines}


def write_model(folder: Path, *, tied: bool) -> None:
    tiny_qwen2(2048, hidden=128, tie_word_embeddings=tied, initializer_range=0.1).save_pretrained(folder)


@pytest.mark.core
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_zero_3_takes_the_step_of_zero_2_and_gathers_the_head_once_a_pass(
    steps: Steps, kind: str, checkpointing: bool
) -> None:
    plain = steps[kind, 2, False, 0.0]
    for stage in (2, 3):
        result = steps[kind, stage, checkpointing, 0.0]
        assert all(s.applied for s in result)
        assert [s.norm for s in result] == pytest.approx([s.norm for s in plain], rel=1e-4)
    assert plain[0].norm > 0
    first, *later = steps[kind, 3, checkpointing, 0.0]
    # Forward and backward of three micro-batches, before DeepSpeed has a trace.
    assert 1 <= first.gathers <= 2 * 3
    # The backward pass begins where the forward pass ended.
    assert all(1 <= step.gathers <= 3 for step in later)


@pytest.mark.core
def test_the_kl_term_is_that_of_zero_2(steps: Steps) -> None:
    kinds = (2, False, 0.1), (3, False, 0.1), (2, False, 0.0)
    wanted, result, without = (steps["tied", *kind] for kind in kinds)
    assert [s.norm for s in result] == pytest.approx([s.norm for s in wanted], rel=1e-4)
    # The reference is the policy before the first step, so that the term acts from the second on.
    assert wanted[0].norm == pytest.approx(without[0].norm, rel=1e-4)
    assert abs(wanted[2].norm / without[2].norm - 1) > 1e-3


LORA = """
import json, os, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from hora_rl.common.load import load
from hora_rl.learner.ranks import set_device
from hora_rl.learner.model.engine import Engine
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
Adapters = tuple[Path, dict[tuple[int, bool, float], tuple[list[float], bool]]]
ADAPTED = [(0, False, 0.1), (2, False, 0.0), (2, False, 0.1), (3, True, 0.1)]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Adapters:
    """(folder of all checkpoints, [norms of three steps, whether the third was repeated] by case)."""
    folder = tmp_path_factory.mktemp("lora")
    write_model(folder / "model", tied=True)
    lines = cases_of(run_ranks(LORA, folder, str(folder), json.dumps(TOKENS), json.dumps(ADAPTED)))
    print(*lines, sep="\n")
    return folder, {(c[0], c[1], c[2]): (f[0], f[1]) for c, f in lines}


def test_every_stage_takes_the_same_steps_and_repeats_the_one_after_a_checkpoint(adapters: Adapters) -> None:
    norms = {case: n for case, (n, _) in adapters[1].items() if case[2]}
    first = norms[0, False, 0.1]
    assert first[0] > 0
    assert all(n == pytest.approx(first, rel=1e-4) for n in norms.values()), norms
    assert all(same for _, same in adapters[1].values()), adapters[1]


def test_the_reference_is_the_policy_without_its_adapter(adapters: Adapters) -> None:
    """It is the policy itself before the first step, so the KL term acts from the second on."""
    without, with_kl = (adapters[1][2, False, kl][0] for kl in (0.0, 0.1))
    assert with_kl[0] == pytest.approx(without[0], rel=1e-4)
    assert abs(with_kl[2] / without[2] - 1) > 1e-3


@pytest.mark.parametrize("number", range(len(ADAPTED)))
def test_a_checkpoint_holds_the_adapter_and_nothing_of_the_base(adapters: Adapters, number: int) -> None:
    folder = adapters[0] / str(number)
    restored = load_file(folder / "restored.safetensors")
    weights = _weights(folder / "state")
    assert len(weights) == len(restored) == 2 * 7 * 2
    stored, loaded = (sorted(t.sum().item() for t in of.values()) for of in (weights, restored))
    assert stored == loaded
    size = sum(f.stat().st_size for f in (folder / "state").rglob("*") if f.is_file())
    base = sum(t.numel() for t in load_file(adapters[0] / "model" / "model.safetensors").values())
    assert size < 4 * base, "bytes of weights and optimizer, against those of the base's weights alone"
    assert all(torch.isfinite(t).all() for t in weights.values())


PARTS = """
import json, os, sys
import torch
from deepspeed.utils import safe_get_full_grad
from hora_rl.common.load import load
from hora_rl.learner.model import engine as module
from hora_rl.learner.ranks import set_device
from hora_rl.learner.model.engine import Engine
from hora_rl.learner.model.loading import _Files
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
    weights = {name: t.clone() for name, t in engine.published()}
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
Loaded = dict[tuple[str, str, float], dict[str, Any]]
LOADED = [("qwen2", "bfloat16", 0.0), ("granite", "bfloat16", 0.0), ("qwen2", "float32", 0.1)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("parts")
    tiny_qwen2(512, hidden=64, initializer_range=0.1).save_pretrained(folder / "qwen2")
    model_of("granite").save_pretrained(folder / "granite")
    cases = [(str(folder / family), dtype, kl) for family, dtype, kl in LOADED]
    lines = cases_of(run_ranks(PARTS, folder, json.dumps(cases)))
    return {(Path(c[0]).name, c[1], c[2]): values for c, values in lines}


@pytest.mark.parametrize("case", LOADED)
def test_a_model_loaded_by_part_computes_as_a_whole_one(loaded: Loaded, case: tuple[str, str, float]) -> None:
    """Log-probs, gradients, norms and weights, bit by bit. Each rank holds half, of the reference too."""
    each = loaded[case]
    assert all(each["equal"]), each
    assert each["gradient"] > 0
    assert each["norms"] == each["wanted"]
    assert min(each["norms"]) > 0
    assert each["weights"]
    assert each["same_buffers"]
    assert set(each["buffers"]) == {"torch.float32"}
    by_part, full = each["reads"]
    assert by_part > full == 0
    assert len(each["shares"]) == 1 + (case[2] > 0)
    assert all(held <= 0.51 * elements for elements, held in each["shares"]), each["shares"]
