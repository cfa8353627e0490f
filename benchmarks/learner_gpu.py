"""MFU and peak memory of the learner's own engine on one NVIDIA GPU: Qwen2.5-1.5B shapes, random weights,
bfloat16.

    python -m benchmarks.learner_gpu [--samples 128] [--steps 5] [--tokens-per-microbatch 16384]

Needs torch, transformers and deepspeed (and flash-attn for `--attention flash_attention_2`); neither vLLM,
Ray nor Redis. Completions up to 2,048 tokens with a long tail, in ragged groups; a step is forward, backward
and AdamW as in training. How MFU counts is in learner/flops.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from common.config import Config
from learner.batch import Sample, micro_batches
from learner.flops import Shape, peak_flops

MAX_RESPONSE = 2048
SHAPE = {
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True)
class Result:
    """Median step. `tokens`: real ones of a step, prompts included; `flops` what they need at least."""

    seconds: float
    tokens: int
    flops: float
    real_share: float
    micro_batches: int
    peak_bytes: int


def ragged_samples(count: int, vocabulary: int, longest: int, seed: int = 0) -> list[Sample]:
    """Completions of lognormal length (median a quarter of `longest`), cut there, behind prompts of 60 to
    300."""
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        n = int(np.clip(rng.lognormal(np.log(longest / 4), 0.6), 1, longest))
        prompt = rng.integers(0, vocabulary, int(rng.integers(60, 300))).astype(np.int32)
        tokens = rng.integers(0, vocabulary, n).astype(np.int32)
        logprobs = np.full(n, -np.log(vocabulary), np.float32)
        samples.append(
            Sample(
                prompt, tokens, logprobs, float(rng.normal()), 1 / (count * longest), np.ones(n, dtype=bool)
            )
        )
    return samples


def measure(shape: dict[str, Any], args: argparse.Namespace, longest: int, dtype: str) -> Result:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from learner.engine import Engine

    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**shape)).to(getattr(torch, dtype))
        model.save_pretrained(folder)
        del model
        config = Config.model_validate(
            {
                "model": {"path": folder, "dtype": dtype},
                "data": {"path": "arithmetic"},
                "rollout": {"max_prompt_tokens": 300, "max_response_tokens": longest},
                "learner": {
                    "tokens_per_microbatch": args.tokens_per_microbatch,
                    "attention": args.attention,
                    "gradient_checkpointing": args.gradient_checkpointing,
                    "zero_stage": args.zero_stage,
                    "threads": torch.get_num_threads(),
                },
            }
        )
        engine = Engine(config, rank=0, world=1)
    samples = ragged_samples(args.samples, shape["vocab_size"], longest)
    micro, figures = micro_batches(samples, args.tokens_per_microbatch, args.attention == "flash_attention_2")
    engine.step(micro)  # the first step pays for one-time preparation
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(args.steps):
        started = time.perf_counter()
        engine.step(micro)
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return Result(
        seconds=statistics.median(seconds),
        tokens=sum(s.length for s in samples),
        flops=Shape.of(engine.hf).flops(samples),
        real_share=figures["packing/tokens"] / figures["packing/processed"],
        micro_batches=len(micro),
        peak_bytes=torch.cuda.max_memory_allocated() if cuda else 0,
    )


def join_alone(backend: str) -> None:
    """A process group of one, meeting in a file: no port is needed. DeepSpeed takes it over."""
    import deepspeed

    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
    }.items():
        os.environ.setdefault(name, value)
    with tempfile.NamedTemporaryFile(delete=False) as store:
        torch.distributed.init_process_group(
            backend, init_method=f"file://{store.name}", rank=0, world_size=1
        )
    deepspeed.init_distributed(dist_backend=backend)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tokens-per-microbatch", type=int, default=16384)
    parser.add_argument("--attention", choices=["sdpa", "flash_attention_2"], default="sdpa")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--zero-stage", type=int, choices=[0, 1, 2, 3], default=1)
    return parser.parse_args(argv)


def main() -> None:
    args = arguments()
    if not torch.cuda.is_available():
        raise SystemExit(
            "no NVIDIA GPU that torch can use: nothing is measured (benchmarks.learner runs on CPU)"
        )
    torch.cuda.set_device(0)
    join_alone("nccl")
    result = measure(SHAPE, args, MAX_RESPONSE, "bfloat16")
    name = torch.cuda.get_device_name()
    peak = peak_flops(name, "bfloat16")
    rate = result.flops / result.seconds
    print(
        f"{name}: {result.tokens} tokens in {result.micro_batches} micro-batches, {result.real_share:.1%} "
        "real"
    )
    print(
        f"{result.seconds:.2f} s a step, {result.tokens / result.seconds:,.0f} tokens/s, {rate / 1e12:.0f} "
        "TFLOP/s"
    )
    print(f"MFU {rate / peak:.1%}" if peak else "MFU unknown: learner/flops.py has no peak for this GPU")
    print(f"peak memory {result.peak_bytes / 2**30:.1f} GiB")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
