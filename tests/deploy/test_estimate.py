"""The estimate of a learner's memory against what a backward pass takes on CPU."""

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2ForCausalLM

from hora_rl.common.load import load
from hora_rl.deploy.checks.estimate import Estimate, ModelShape
from hora_rl.learner.batch import micro_batches
from hora_rl.learner.logprobs import Policy, without_dropout
from hora_rl.learner.prefixes import Sharing, length, rows_of
from hora_rl.learner.sample import Sample
from tests.support.tiny_qwen2 import shape_of

GIB = 2**30
PARTS = ("activations", "repeated keys and values", "mask", "logits", "head's gradient")
PARTS += ("gradients as computed",)


def group(prompt: int, response: int, size: int) -> list[Sample]:
    tokens, numbers = np.ones(response, np.int32), np.full(response, -1.0, np.float32)
    return [
        Sample(np.ones(prompt, np.int32), tokens, numbers, 1.0, 1.0, np.ones(response, bool))
        for _ in range(size)
    ]


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
    config = load(
        "tiny",
        [
            f"rollout.max_prompt_tokens={prompt}",
            f"rollout.max_response_tokens={response}",
            "rollout.prompts_per_batch=8",
            "rollout.shards=1",
            f"rollout.group_size={size}",
            "rollout.pre_rollouts=2",
            f"learner.tokens_per_microbatch={budget}",
            "learner.logit_chunk=32",
            f"learner.gradient_checkpointing={str(checkpointing).lower()}",
            "learner.zero_stage=2",
        ],
    )
    shape = ModelShape.of(hf, config.learner.lora)
    sharing = Sharing(shape.even, shape.window)
    samples = group(prompt, response, size)
    rows = rows_of(samples, budget, sharing)
    shared = max(map(length, rows)) if max(map(len, rows)) > 1 else 0
    assert bool(shared) == (case not in ("alone", "a head"))
    estimate = Estimate(config, shape)
    assert estimate.widest_row() >= shared
    found = peak(Policy(without_dropout(hf)), samples, sharing, budget, 32)
    need = estimate.rank(card=False).backward
    expected = sum(need[part] for part in PARTS)
    print(
        f"{case}: measured {found * 1024:.1f} MiB, estimated {expected * 1024:.1f}: "
        + ", ".join(f"{p} {need[p] * 1024:.1f}" for p in PARTS)
    )
    assert 0.9 * found < expected < 1.4 * found
