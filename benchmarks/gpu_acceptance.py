"""Does HORA's learner do on this GPU what it should? One line a check, in about ten minutes.

    python -m benchmarks.gpu_acceptance            # one NVIDIA GPU
    python -m benchmarks.gpu_acceptance --small    # tiny shapes, on CPU too: that the program runs

Needs torch, transformers, deepspeed and pydantic (Python 3.11 and 3.12); with peft the LoRA step too. Each
line says PASS, FAIL or SKIP, the figure, and what is expected. The exit status is 1 where a check failed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.gpu_step import (
    SHAPE_1_5B,
    SMALL,
    WIDE_7B,
    configuration,
    engine_of,
    join_alone,
    measure,
    ragged_samples,
)

GIB = 2**30
WANTED_MFU = 0.40


@dataclass(frozen=True, slots=True)
class Line:
    """`passed` None: not measured, and `figure` says why."""

    name: str
    passed: bool | None
    figure: str
    expected: str = ""

    def __str__(self) -> str:
        mark = "SKIP" if self.passed is None else "PASS" if self.passed else "FAIL"
        return f"{mark} {self.name}: {self.figure}" + (
            f" (expected {self.expected})" if self.expected else ""
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured on: shapes, samples and steps."""

    device: torch.device
    dtype: str
    whole: dict[str, Any]
    wide: dict[str, Any]
    longest: int
    samples: int
    steps: int
    budget: int
    copied: int

    @classmethod
    def of(cls, small: bool) -> Sizes:
        cuda = torch.cuda.is_available()
        device = torch.device("cuda" if cuda else "cpu")
        if small:
            return cls(device, "bfloat16" if cuda else "float32", SMALL, SMALL, 64, 8, 1, 512, 2**20)
        return cls(device, "bfloat16", SHAPE_1_5B, WIDE_7B, 2048, 128, 3, 16384, 2**30)


def rate(work: Callable[[], object], size: int, device: torch.device) -> float:
    """GB/s of `work` over `size` bytes, the second time."""
    for _ in range(2):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return size / 1e9 / max(seconds, 1e-9)


def ceilings(sizes: Sizes) -> Iterator[Line]:
    """What copies and hashes can reach at all; nothing is expected of them but the order."""
    from common.weight_hash import TensorHash

    source = torch.ones(sizes.copied // 4, device=sizes.device)
    kept = torch.empty(sizes.copied // 4, pin_memory=sizes.device.type == "cuda")
    own = TensorHash()
    raw = kept.view(torch.uint8)[: min(sizes.copied, 2**28)].numpy().tobytes()
    rates = {
        "new memory": rate(lambda: source.cpu().clone(), sizes.copied, sizes.device),
        "kept memory": rate(lambda: kept.copy_(source), sizes.copied, sizes.device),
        "SHA-256": rate(lambda: hashlib.sha256(raw).digest(), len(raw), torch.device("cpu")),
        "hash in place": rate(lambda: own.digest([("w", source)]), sizes.copied, sizes.device),
    }
    figure = ", ".join(f"{name} {value:.1f} GB/s" for name, value in rates.items())
    yield Line("ceilings", True, figure)
    if sizes.device.type == "cuda":
        seconds = 15.2 / rates["hash in place"]
        yield Line("checksum of 7B", seconds < 0.2, f"{seconds:.3f} s", "below 0.2 s")


def head(sizes: Sizes) -> Iterator[Line]:
    """Log-probs of the chunked head against those of all logits at once."""
    from learner.head import scored

    for dtype, allowed in (("float32", 2e-4), ("bfloat16", 3e-2)):
        torch.manual_seed(0)
        width, rows = sizes.wide["hidden_size"], 300
        states = torch.randn(rows, width, device=sizes.device, dtype=getattr(torch, dtype))
        weight = torch.randn(sizes.wide["vocab_size"], width, device=sizes.device, dtype=states.dtype)
        weight *= width**-0.5
        targets = torch.randint(sizes.wide["vocab_size"], (rows,), device=sizes.device)
        whole = scored(states @ weight.T, targets, 1.0)[0]
        parts = [slice(at, at + 128) for at in range(0, rows, 128)]
        chunked = torch.cat([scored(states[p] @ weight.T, targets[p], 1.0)[0] for p in parts])
        gap = float((whole - chunked).abs().max())
        yield Line(f"chunked head, {dtype}", gap <= allowed, f"{gap:.1e} nats", f"at most {allowed:g}")


def attention(sizes: Sizes) -> Iterator[Line]:
    """That the forward pass runs a fused kernel, by the profiler's names."""
    with engine_of(sizes.wide, sizes.dtype, sizes.longest, tokens_per_microbatch=sizes.budget * 2) as engine:
        ids = torch.ones(1, min(512, sizes.budget), dtype=torch.long, device=sizes.device)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if sizes.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.no_grad(), torch.profiler.profile(activities=activities) as profile:
            engine.hf(input_ids=ids, use_cache=False)
        names = {event.key for event in profile.key_averages()}
    fused = sorted(n for n in names if any(w in n.lower() for w in ("flash", "fmha", "efficient_attention")))
    yield Line("attention kernel", bool(fused), (fused[0] if fused else "none")[:60], "a fused one")


def steps(sizes: Sizes) -> Iterator[Line]:
    """MFU and memory of a step, and that ZeRO-3 on one rank takes the same step about as fast."""
    from deploy.preflight.estimate import ModelShape, rank_need

    found = {}
    samples = ragged_samples(sizes.samples, sizes.whole["vocab_size"], sizes.longest)
    for stage in (1, 3):
        settings = {"zero_stage": stage, "tokens_per_microbatch": sizes.budget}
        with engine_of(
            sizes.whole, sizes.dtype, sizes.longest, gradient_checkpointing=True, **settings
        ) as engine:
            config, shape = engine._config, ModelShape.of(engine.hf, engine._config) if stage == 1 else None
            found[stage] = measure(engine, samples, sizes.budget, sizes.steps)
        if shape is not None:
            yield from speed(f"step of {shape.parameters / 1e9:.2f}B, ZeRO-1", found[1], sizes)
            need, peak = rank_need(shape, config).gib, found[1].peak_bytes / GIB
            if peak:
                figure = f"{peak:.1f} GiB allocated, {need:.1f} estimated"
                yield Line("memory", peak <= need, figure, "no more than the estimate")
    apart = abs(found[3].norm / found[1].norm - 1)
    yield Line("ZeRO-3 on one rank, norm", apart < 1e-2, f"{apart:.1e} apart", "below 1e-2")
    if sizes.device.type == "cuda":
        slower = found[3].seconds / found[1].seconds
        yield Line("ZeRO-3 on one rank, time", slower < 1.1, f"{slower:.2f} of ZeRO-1's", "below 1.1")


def speed(name: str, result: Any, sizes: Sizes) -> Iterator[Line]:
    figure = f"{result.seconds:.2f} s, {result.tokens / result.seconds:,.0f} tokens/s"
    mfu = result.mfu(sizes.dtype)
    if mfu is None:
        yield Line(name, True, f"{figure}; MFU unknown: learner/flops.py has no peak for this device")
    else:
        yield Line(name, mfu >= WANTED_MFU, f"{figure}, MFU {mfu:.1%}", f"{WANTED_MFU:.0%}")


def wide(sizes: Sizes) -> Iterator[Line]:
    """Layers as wide as a 7B model's, and what its weights take to rank 0's host memory."""
    from learner.weights.host_copy import HostCopy

    samples = ragged_samples(sizes.samples // 2, sizes.wide["vocab_size"], sizes.longest)
    settings = {"gradient_checkpointing": True, "tokens_per_microbatch": sizes.budget}
    with engine_of(sizes.wide, sizes.dtype, sizes.longest, **settings) as engine:
        result = measure(engine, samples, sizes.budget, sizes.steps)
        yield from speed("four layers of a 7B's width", result, sizes)
        copy = HostCopy(engine, 0)
        size = sum(t.nbytes for _, t in copy.take())
        per_gb = 1 / rate(copy.take, size, sizes.device)
    fast = per_gb * 15.2 < 1.0 if sizes.device.type == "cuda" else True
    yield Line("gather", fast, f"{per_gb:.3f} s per GB", "7B below 1 s: 0.066")


def adapter(sizes: Sizes) -> Iterator[Line]:
    """A step that trains an adapter: less memory than the full step, and only the adapter moves."""
    if find_spec("peft") is None:
        yield Line("LoRA step", None, "peft is not installed")
        return
    samples = ragged_samples(sizes.samples // 2, sizes.wide["vocab_size"], sizes.longest)
    settings = {"gradient_checkpointing": True, "tokens_per_microbatch": sizes.budget, "lora": {"rank": 16}}
    with engine_of(sizes.wide, sizes.dtype, sizes.longest, **settings) as engine:
        before = {n: p.detach().clone() for n, p in engine.hf.named_parameters() if "norm" in n}
        result = measure(engine, samples, sizes.budget, sizes.steps)
        still = all(torch.equal(p, before[n]) for n, p in engine.hf.named_parameters() if n in before)
        size = sum(p.numel() for p in engine.hf.parameters() if p.requires_grad)
        whole = sum(p.numel() for p in engine.hf.parameters())
    figure = f"{result.seconds:.2f} s, norm {result.norm:.2e}, {size / whole:.2%} of the weights trained"
    yield Line("LoRA step", still and result.norm > 0, figure, "the base stands still")


def engine_side(sizes: Sizes) -> Iterator[Line]:
    """vLLM's part, where it is installed."""
    name, expected = "vLLM's packed transfer", "every tensor as it was"
    if find_spec("vllm") is None or sizes.device.type != "cuda":
        why = "vllm is not installed" if find_spec("vllm") is None else "needs a GPU"
        yield Line(name, None, why)
    else:
        from benchmarks.gpu_packed import packed_transfer

        yield Line(name, *packed_transfer(sizes.copied, sizes.device), expected)
    yield Line("vLLM's sleep and wake", None, "run `make test-gpu`, which starts engines")


CHECKS = (ceilings, head, attention, steps, wide, adapter, engine_side)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny shapes, on CPU too")
    options = parser.parse_args(argv)
    cuda = torch.cuda.is_available()
    if not cuda and not options.small:
        print("no NVIDIA GPU that torch can use: nothing is measured; --small runs on CPU", file=sys.stderr)
        return 2
    if cuda:
        torch.cuda.set_device(0)
    from learner.engine import set_device

    join_alone(set_device(configuration(".", "float32", 64), 0))
    sizes, failed = Sizes.of(options.small), 0
    name = torch.cuda.get_device_name() if cuda else "CPU"
    print(f"{name}, torch {torch.__version__}{', small shapes' if options.small else ''}", flush=True)
    for check in CHECKS:
        for line in check(sizes):
            print(line, flush=True)
            failed += line.passed is False
    print(f"{failed} failed", flush=True)
    torch.distributed.destroy_process_group()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
