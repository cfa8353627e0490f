"""The estimate of a learner's memory against what a backward pass takes on CPU, the arithmetic of a step,
counted by hand, and what a run takes of the disk."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, Qwen2ForCausalLM

from hora_rl.common.load import load
from hora_rl.common.rollout_files import files_of
from hora_rl.deploy.checks import disk, machine
from hora_rl.deploy.checks.estimate import GIB, Estimate
from hora_rl.deploy.checks.findings import Target, size
from hora_rl.deploy.checks.memory import estimate_of, memory, step_table
from hora_rl.deploy.checks.model_shape import ModelShape
from hora_rl.deploy.checks.step_costs import (
    BANDWIDTH,
    REACHED,
    SEQUENCE_S,
    STEP_S,
    TOKEN_S,
    arithmetic,
    decoding,
    step_seconds,
)
from hora_rl.learner.model.logprobs import Policy, without_dropout
from hora_rl.learner.rows.batch import micro_batches
from hora_rl.learner.rows.prefixes import Sharing, length, rows_of
from hora_rl.learner.rows.sample import Sample
from tests.support.checks import Make, by_name, one
from tests.support.groups import rollout
from tests.support.rollouts import tokenizer, write_rollouts
from tests.support.samples import sized
from tests.support.tiny_qwen2 import SHAPES, shape_of

PARTS = ("activations", "repeated keys and values", "mask", "logits", "head's gradient")
PARTS += ("gradients as computed",)


def peak(policy: Policy, samples: list[Sample], sharing: Sharing | None, budget: int, chunk: int) -> float:
    """GiB that forward and backward of the largest micro-batch take at most on top of the weights, the second
    time: the gradients of the first are there."""
    micro, _ = micro_batches(rows_of(samples, budget, sharing), budget)
    largest = max(micro, key=lambda m: m.input_ids.numel())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as made:
        for _ in range(2):
            logprobs, _ = policy(largest, 1.0, chunk)
            logprobs.sum().backward()
    events = made.profiler.kineto_results.events()  # type: ignore[union-attr]
    sizes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    return float(np.cumsum([size for _, size in sorted(sizes)]).max()) / GIB


EIGHT = ("rollout.prompts_per_batch=8", "rollout.shards=1", "rollout.pre_rollouts=2")
# vocabulary, hidden, layers, heads, key heads; prompt, response, completions; micro-batch; checkpointing
CASES = {
    "shared": ((512, 128, 4, 8, 2), (256, 128, 12), 2048, False),
    "shared, checkpointed": ((512, 128, 4, 8, 2), (256, 128, 12), 2048, True),
    "wide rows": ((512, 64, 2, 8, 1), (1024, 128, 8), 2048, True),
    "many heads": ((512, 256, 4, 32, 1), (256, 64, 8), 768, False),
    "a head": ((32_768, 128, 1, 2, 2), (16, 64, 4), 128, False),
    "alone": ((512, 128, 4, 8, 2), (16, 1000, 4), 2048, False),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_backward_pass_takes_what_is_estimated(case: str) -> None:
    sizes, (prompt, response, size), budget, checkpointing = CASES[case]
    vocabulary, hidden, *others = sizes
    torch.manual_seed(0)
    hf = Qwen2ForCausalLM(shape_of(vocabulary, hidden, 4 * hidden, *others, tie_word_embeddings=False))
    if checkpointing:
        hf.gradient_checkpointing_enable()
    settings = [*EIGHT, f"rollout.max_prompt_tokens={prompt}", f"rollout.max_response_tokens={response}"]
    settings += [f"rollout.group_size={size}", f"learner.tokens_per_microbatch={budget}"]
    settings += ["learner.logit_chunk=32", f"learner.gradient_checkpointing={str(checkpointing).lower()}"]
    config = load("tiny", [*settings, "learner.zero_stage=2"])
    shape = ModelShape.of(hf, config.learner.lora)
    sharing = Sharing(shape.even, shape.window)
    samples = [sized(prompt, response) for _ in range(size)]
    rows = rows_of(samples, budget, sharing)
    shared = max(map(length, rows)) if max(map(len, rows)) > 1 else 0
    assert bool(shared) == (case not in ("alone", "a head"))
    estimate = Estimate(config, shape)
    assert estimate.widest_row() >= shared
    measured = peak(Policy(without_dropout(hf)), samples, sharing, budget, 32)
    need = estimate.rank(card=False).backward
    expected = sum(need[part] for part in PARTS)
    assert 0.9 * measured < expected < 1.4 * measured


FULL = ModelShape(1_000_000, 0, 2, 64, 256, 32, 1000)
ADAPTED = ModelShape(1_000_000, 10_000, 2, 64, 256, 32, 1000)
BASE = (*EIGHT, "rollout.group_size=4", "rollout.max_prompt_tokens=100", "rollout.max_response_tokens=100")
BASE += ("learner.tokens_per_microbatch=400",)


def test_tokens_flops_and_what_travels() -> None:
    """A prompt counts once for its four completions; an adapter costs less, and travels alone."""
    workers = ("learner.workers=2", "learner.zero_stage=2")
    estimate = Estimate(load("tiny", [*BASE, *workers]), FULL)
    step = arithmetic(estimate)
    tokens, computed = 32 * (50 + 50), 8 * (50 + 4 * 50)
    pairs = 2 * 64 * 8 * (4 * 100**2 - 3 * 50**2)
    assert (step.rollouts, step.tokens, step.computed) == (32, tokens, computed)
    assert step.flops == pytest.approx(6e6 * computed + 6 * pairs)
    assert estimate.published_gib * GIB == pytest.approx(4e6)
    sampling = 2e6 * tokens + 2 * 2 * 64 * 100 * tokens
    assert f"{sampling / 1e12:,.3g} TFLOPs over 1 replicas" in step_table(estimate)
    adapted = Estimate(load("tiny", [*BASE, *workers, "learner.lora.rank=4"]), ADAPTED)
    assert adapted.published_gib * GIB == pytest.approx(4e4)
    assert 0.6 < arithmetic(adapted).flops / step.flops < 0.8


SEVEN = ModelShape(7_615_616_512, 0, 28, 3584, 18_944, 512, 152_064)
SIZES = [  # Qwen2.5: hidden, feed-forward, keys, layers, tied head, GiB
    (1536, 8960, 256, 28, True, 3.6),
    (2048, 11_008, 256, 36, True, 8.8),
    (3584, 18_944, 512, 28, False, 26.8),
]


@pytest.mark.parametrize(("hidden", "feed", "keys", "layers", "tied", "gib"), SIZES)
def test_a_sleeping_engine_takes_blocks_of_powers_of_two(
    hidden: int, feed: int, keys: int, layers: int, tied: bool, gib: float
) -> None:
    """Summed over every merged tensor; weights that the shape does not name count twice."""
    projections, words = (hidden + 2 * keys, hidden), 151_936 if tied else 152_064
    tensors = [hidden * n for n in (*projections, 2 * feed, feed)] * layers + [words * hidden] * (2 - tied)
    expected = 0.0
    for n in tensors:
        segment, block = -(-2 * n // 2**21) * 2**21, 1
        while block < segment:
            block *= 2
        expected += block if 2 * n >= 10 * 2**20 else 2 * n * 1.6
    for unknown in (0, 10**6):
        shape = ModelShape(sum(tensors) + unknown, 0, layers, hidden, feed, keys, words)
        assert shape.pinned_bytes(2) == pytest.approx(expected + 4 * unknown)
    assert expected / GIB == pytest.approx(gib, abs=0.1)


PAPER = ("model.dtype=bfloat16", "rollout.prompts_per_batch=60", "rollout.group_size=32")
PAPER += ("rollout.max_prompt_tokens=2048", "rollout.max_response_tokens=2048")
PAPER += ("learner.tokens_per_microbatch=16384", "generator.max_batched_tokens=8192")


def sampled(shape: ModelShape, *more: str) -> tuple[float, float]:
    settings = [*PAPER, "generator.replicas=4", "generator.max_sequences=128", *more]
    return decoding(Estimate(load("tiny", settings), shape), "H100", 80.0)


def test_decoding_is_bound_by_what_a_card_reads_or_by_an_engine_s_processors() -> None:
    weights, entry, context = 2 * 7_615_616_512, 2 * 28 * 512 * 2, 1024 + 512
    step = (weights + 128 * context * entry) / (REACHED * BANDWIDTH["H100"])
    steps = 1024 * 60 * 32 / (4 * 128)
    card, processors = sampled(SEVEN)
    assert card == pytest.approx(step * steps, rel=0.03), "and little for prompts"
    assert processors == pytest.approx((STEP_S + 128 * SEQUENCE_S) * steps)
    assert sampled(SEVEN, "generator.replicas=8") == pytest.approx((card / 2, processors / 2), rel=0.02)
    small = sampled(FULL)
    assert small[0] < small[1] == processors
    several = sampled(FULL, "generator.replicas=1", "generator.max_sequences=1024")
    assert several[1] == pytest.approx(TOKEN_S * 1024 * 60 * 32), "the replica's process is full"


def test_engines_of_one_card_take_turns_there_and_each_has_its_own_processors() -> None:
    single, four = (
        sampled(SEVEN, "generator.kv_cache_gib=20", f"generator.replicas={n}", f"generator.gpus={gpus}")
        for n, gpus in ((1, 0.5), (4, 0.125))
    )
    assert four == pytest.approx((single[0], single[1] / 4))


def test_sides_that_wait_for_each_other_add_up() -> None:
    settings = [*PAPER, "generator.replicas=4", "learner.workers=4"]
    both = (load("tiny", [*settings, f"rollout.max_staleness={s}"]) for s in (0, 1))
    in_turn, overlapped = (step_seconds(Estimate(config, SEVEN), "H100", 80.0) for config in both)
    assert overlapped < in_turn < 2 * overlapped


def test_a_run_that_would_fill_the_disk_is_refused(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    need = sum(use.gib for use in disk.uses(config(), estimate_of(config())))
    for spare, level in ((0.9, "fail"), (1.1, "ok")):
        free = int((need + spare) * 2**30)
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        [finding] = one(disk.disk, Target(config())).values()
        assert finding.level == level
        assert f"{size(disk.SPARE_GIB)} must remain" in finding.says
        assert ("keep_checkpoints" in finding.fix) == (level == "fail")


def test_the_disk_space_of_200_steps_of_7b(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen2.5-7B has 7.6 billion parameters; AdamW keeps a float32 copy and two moments beside bfloat16."""
    seven = shape_of(*SHAPES["7B"])
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: seven)
    chosen = load("qwen2.5-7b")
    parts = {use.what: use.gib for use in disk.uses(chosen, estimate_of(chosen))}
    assert parts["model"] == pytest.approx(14.2, rel=0.01)
    assert parts["checkpoints"] == pytest.approx(14.2 * 7 * (chosen.learner.keep_checkpoints + 1), rel=0.01)
    [finding] = disk.forecast(Target(chosen))
    assert "learner.keep_checkpoints" in finding.says
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    unknown = load("qwen2.5-7b", ["model.path=nobody/nothing-here"])
    assert {use.what for use in disk.uses(unknown, estimate_of(unknown))} == {"rollouts", "records", "Redis"}


@pytest.mark.parametrize("lora", [None, {"rank": 8}])
def test_memory_and_disk_agree_on_the_size_of_the_checkpoints(
    config: Make, lora: dict[str, int] | None
) -> None:
    """Also where the model's files have another precision than the run."""
    estimate = estimate_of(config())
    assert estimate is not None
    of_files = machine.model_gib(config().model.path)
    assert estimate.weights_gib == pytest.approx(of_files, rel=0.03)
    chosen = config(model={"dtype": "bfloat16"}, learner={"lora": lora, "keep_checkpoints": 500})
    table = by_name(memory(Target(chosen)))["memory per part"].says
    row = re.search(r"disk, checkpoints +([\d.]+)", table)
    [use] = [use for use in disk.uses(chosen, estimate_of(chosen)) if use.what == "checkpoints"]
    assert row is not None
    assert float(row[1]) == pytest.approx(use.gib, abs=0.01)
    assert use.gib > 0.1


@pytest.mark.parametrize("kept", ["all", "logprobs"])
def test_no_more_rollouts_are_written_than_expected(tmp_path: Path, kept: str) -> None:
    setting = f"telemetry.rollouts={kept}"
    text = tokenizer().encode("<think>7+8+0=15,3+5+1=9</think><answer>95</answer>" * 2)

    def draw(step: int, prompt: int) -> list:
        shifted = [text[(i * (prompt + 3)) % len(text)] for i in range(64)]
        return [rollout(shifted, logprobs=-0.1 * (1 + i + prompt), version=step) for i in range(8)]

    write_rollouts(tmp_path, setting, steps=2, prompts=10, draw=draw)
    written = sum(path.stat().st_size for path in files_of(tmp_path).values())
    sizes = ["learner.steps=2", "rollout.prompts_per_batch=10", "rollout.group_size=8", "rollout.shards=1"]
    config = load("tiny", [setting, *sizes, "rollout.pre_rollouts=2", "rollout.max_response_tokens=64"])
    assert written < disk.expected_gib(config.rollout, config.telemetry, 2) * 2**30
    large = load("qwen2.5-7b", ["telemetry.rollouts_gib=0.5"])
    assert disk.expected_gib(large.rollout, large.telemetry, large.learner.steps) == 0.5
