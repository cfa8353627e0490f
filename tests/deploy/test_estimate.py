"""The estimate of a learner's memory against what a backward pass takes on CPU, the seconds of a step counted
by hand, and what a run takes of the disk."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, Qwen2ForCausalLM

from hora_rl.common.load import load
from hora_rl.common.rollout_files import files_of
from hora_rl.deploy.checks import memory
from hora_rl.deploy.checks.estimate import GIB, Estimate, ModelShape
from hora_rl.deploy.checks.findings import Target, size
from hora_rl.deploy.checks.memory import estimate_of
from hora_rl.deploy.checks.resources import (
    BANDWIDTH,
    REACHED,
    SEQUENCE_S,
    STEP_S,
    TOKEN_S,
    decoding,
    step_seconds,
    training_flops,
)
from hora_rl.learner.model.logprobs import Policy, without_dropout
from hora_rl.learner.rows.batch import micro_batches
from hora_rl.learner.rows.packing import Sharing, rows_of
from tests.support.checks import Make, one
from tests.support.groups import rollout
from tests.support.rollouts import tokenizer, write_rollouts
from tests.support.samples import sized
from tests.support.tiny_qwen2 import SHAPES, shape_of

EIGHT = ("rollout.prompts_per_batch=8", "rollout.shards=1", "rollout.pre_rollouts=2")


@pytest.mark.parametrize(
    ("sizes", "prompt", "response", "group", "budget", "checkpointing"),
    [  # sizes: vocabulary, hidden, layers, heads, key heads
        ((512, 128, 4, 8, 2), 256, 128, 12, 2048, False),
        ((512, 128, 4, 8, 2), 256, 128, 12, 2048, True),
        ((512, 64, 2, 8, 1), 1024, 128, 8, 2048, True),
        ((512, 256, 4, 32, 1), 256, 64, 8, 768, False),
        ((32_768, 128, 1, 2, 2), 16, 64, 4, 128, False),
        ((512, 128, 4, 8, 2), 16, 1000, 4, 2048, False),  # no row is shared
    ],
)
def test_a_backward_pass_takes_no_more_than_is_estimated(
    sizes: tuple[int, ...], prompt: int, response: int, group: int, budget: int, checkpointing: bool
) -> None:
    """The peak of the largest micro-batch on top of the weights, the second time: the gradients of the first
    are there."""
    vocabulary, hidden, *others = sizes
    hf = Qwen2ForCausalLM(shape_of(vocabulary, hidden, 4 * hidden, *others, tie_word_embeddings=False))
    if checkpointing:
        hf.gradient_checkpointing_enable()
    settings = [*EIGHT, f"rollout.max_prompt_tokens={prompt}", f"rollout.max_response_tokens={response}"]
    settings += [f"rollout.group_size={group}", f"learner.tokens_per_microbatch={budget}"]
    settings += ["learner.logit_chunk=32", f"learner.gradient_checkpointing={str(checkpointing).lower()}"]
    estimate = Estimate(load("tiny", settings), ModelShape.of(hf, None))
    rows = rows_of([sized(prompt, response) for _ in range(group)], budget, Sharing(even=1000.0))
    largest = max(micro_batches(rows, budget)[0], key=lambda m: m.input_ids.numel())
    policy = Policy(without_dropout(hf))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as made:
        for _ in range(2):
            logprobs, _ = policy(largest, 1.0, 32)
            logprobs.sum().backward()
    events = made.profiler.kineto_results.events()  # type: ignore[union-attr]
    allocated = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    measured = float(np.cumsum([number for _, number in sorted(allocated)]).max()) / GIB
    expected = estimate.micro_batch_bytes(mask=True) / GIB + estimate.rank()["logits"] + estimate.weights_gib
    assert measured <= expected < 1.6 * measured


FULL = ModelShape(1_000_000, 0, 2, 64, 256, 32, 64, 1000)
ADAPTED = ModelShape(1_000_000, 10_000, 2, 64, 256, 32, 64, 1000)
SEVEN = ModelShape(7_615_616_512, 0, 28, 3584, 18_944, 512, 3584, 152_064)


def test_a_prompt_counts_once_for_its_completions_and_an_adapter_costs_less_and_travels_alone() -> None:
    base = (
        *EIGHT,
        "rollout.group_size=4",
        "rollout.max_prompt_tokens=100",
        "rollout.max_response_tokens=100",
    )
    full, adapted = (Estimate(load("tiny", base), shape) for shape in (FULL, ADAPTED))
    pairs = 2 * 64 * 8 * (4 * 100**2 - 3 * 50**2)
    assert training_flops(full) == pytest.approx(6e6 * 8 * (50 + 4 * 50) + 6 * pairs)
    assert 0.6 < training_flops(adapted) / training_flops(full) < 0.8
    assert [e.published_gib * GIB for e in (full, adapted)] == pytest.approx([4e6, 4e4])
    large = Estimate(load("tiny", ["model.dtype=bfloat16"]), SEVEN)
    lora = Estimate(load("tiny", ["model.dtype=bfloat16", "learner.lora.rank=16"]), SEVEN)
    assert large.checkpoint_gib == 7 * large.published_gib == 7 * lora.weights_gib


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


SHARED = ("generator.kv_cache_gib=20", "learner.gpus=0.5")


def test_engines_of_one_card_take_turns_there_and_each_has_its_own_processors() -> None:
    single, four = (
        sampled(SEVEN, *SHARED, f"generator.replicas={n}", f"generator.gpus={gpus}")
        for n, gpus in ((1, 0.5), (4, 0.125))
    )
    assert four == pytest.approx((single[0], single[1] / 4))


def test_sides_that_wait_for_each_other_add_up() -> None:
    settings = [*PAPER, "generator.replicas=4", "learner.workers=4"]
    both = (load("tiny", [*settings, f"rollout.max_staleness={s}"]) for s in (0, 1))
    in_turn, overlapped = (step_seconds(Estimate(config, SEVEN), "H100", 80.0) for config in both)
    assert overlapped < in_turn < 2 * overlapped


def test_a_run_that_would_fill_the_disk_is_refused(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    need = sum(memory.uses(config(), estimate_of(config())).values())
    for spare, level in ((0.9, "fail"), (1.1, "ok")):
        free = int((need + spare) * 2**30)
        monkeypatch.setattr(memory.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        [finding] = one(memory.disk, Target(config())).values()
        assert finding.level == level
        assert f"{size(memory.SPARE_GIB)} must remain" in finding.says
        assert ("keep_checkpoints" in finding.fix) == (level == "fail")


def test_the_disk_space_of_200_steps_of_7b(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen2.5-7B has 7.6 billion parameters; AdamW keeps a float32 copy and two moments beside bfloat16."""
    seven = shape_of(*SHAPES["7B"])
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: seven)
    chosen = load("qwen2.5-7b")
    parts = memory.uses(chosen, estimate_of(chosen))
    assert parts["model"] == pytest.approx(14.2, rel=0.01)
    assert parts["checkpoints"] == pytest.approx(14.2 * 7 * (chosen.learner.keep_checkpoints + 1), rel=0.01)
    [finding] = memory.disk(Target(chosen, "elsewhere"))
    assert "learner.keep_checkpoints" in finding.says
    monkeypatch.undo()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    unknown = load("qwen2.5-7b", ["model.path=nobody/nothing-here"])
    parts = memory.uses(unknown, estimate_of(unknown))
    assert parts.keys() == {"rollouts", "records", "Redis"}
    groups = unknown.learner.steps * unknown.rollout.prompts_per_batch
    assert parts["records"] * GIB == groups * 1024 + unknown.learner.steps * 8192


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
    assert written < memory.expected_gib(config.rollout, config.telemetry, 2) * 2**30
    large = load("qwen2.5-7b", ["telemetry.rollouts_gib=0.5"])
    assert memory.expected_gib(large.rollout, large.telemetry, large.learner.steps) == 0.5
