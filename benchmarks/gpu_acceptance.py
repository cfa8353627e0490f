"""Does HORA's learner do on this GPU what it should? One line a check, in about ten minutes.

    python -m benchmarks.gpu_acceptance            # one NVIDIA GPU of 80 GB
    python -m benchmarks.gpu_acceptance --small    # tiny shapes, on CPU too: that the program runs

Needs torch, transformers, deepspeed and pydantic (Python 3.11 and 3.12); peft for the LoRA step.
Each line says PASS, FAIL or SKIP, the figure, and what is expected. The exit status is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.gpu_step import (
    SHAPE_1_5B,
    SMALL,
    WIDE_7B,
    Result,
    configuration,
    engine_of,
    join_alone,
    measure,
    ragged_samples,
)
from hora_rl.common.errors import one_line

GIB = 2**30
EXPECTED_MFU = "25 to 35% with checkpointing"
LIMIT_S = 180.0
"""Of one check."""
SPARE = 1.05
FUSED = ("flash", "fmha", "efficient_attention", "cudnn_attention")
MARK = "LINE "
PIECES = 40


@dataclass(frozen=True, slots=True)
class Line:
    """`passed` None: not measured, and `figure` says why."""

    name: str
    passed: bool | None
    figure: str
    expected: str = ""

    def __str__(self) -> str:
        """A row of a Markdown table."""
        mark = "SKIP" if self.passed is None else "PASS" if self.passed else "FAIL"
        return f"| {mark} | {self.name} | {self.figure.replace('|', '/')} | {self.expected} |"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured on: shapes, samples and steps. `judged`: at full size on a card, so speeds mean
    something."""

    device: torch.device
    judged: bool
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
            return cls(device, False, "bfloat16" if cuda else "float32", SMALL, SMALL, 64, 8, 1, 512, 2**20)
        return cls(device, cuda, "bfloat16", SHAPE_1_5B, WIDE_7B, 2048, 128, 3, 16384, 2**30)


def rate(work: Callable[[], object], size: int, device: torch.device) -> float:
    """GB/s of `work` over `size` bytes, the second time."""
    for _ in range(2):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return size / 1e9 / max(seconds, 1e-9)


def pinned(sizes: Sizes) -> torch.Tensor:
    return torch.empty(sizes.copied // 4, pin_memory=sizes.device.type == "cuda")


def copy_rate(sizes: Sizes) -> float:
    """GB/s of a plain copy to pinned memory: what this machine's link can do."""
    kept, source = pinned(sizes), torch.ones(sizes.copied // 4, device=sizes.device)
    return rate(lambda: kept.copy_(source), sizes.copied, sizes.device)


def ceilings(sizes: Sizes) -> Iterator[Line]:
    """What copies and hashes can reach at all; nothing is expected of them but the order."""
    from hora_rl.common.weights.hash import TensorHash

    source = torch.ones(sizes.copied // 4, device=sizes.device)
    own, kept = TensorHash(), pinned(sizes)
    raw = kept.view(torch.uint8)[: min(sizes.copied, 2**28)].numpy().tobytes()
    rates = {
        "new memory": rate(lambda: source.cpu().clone(), sizes.copied, sizes.device),
        "kept memory": copy_rate(sizes),
        "SHA-256": rate(lambda: hashlib.sha256(raw).digest(), len(raw), torch.device("cpu")),
        "hash in place": rate(lambda: own.digest([("w", source)]), sizes.copied, sizes.device),
    }
    figure = ", ".join(f"{name} {value:.1f} GB/s" for name, value in rates.items())
    yield Line("ceilings", True, figure)
    if sizes.judged:
        seconds = 15.2 / rates["hash in place"]
        yield Line("checksum of 7B", seconds < 0.2, f"{seconds:.3f} s", "below 0.2 s")


def head(sizes: Sizes) -> Iterator[Line]:
    """Log-probs of the chunked head against those of all logits at once."""
    from hora_rl.learner.head import scored

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
    fused = sorted(n for n in names if any(kind in n.lower() for kind in FUSED))
    yield Line("attention kernel", bool(fused), (fused[0] if fused else "none")[:60], "a fused one")


def steps(sizes: Sizes) -> Iterator[Line]:
    """Speed and memory of a step, and that ZeRO-3 on one rank takes the same one."""
    two, need = stage_step(sizes, 2)
    yield from speed("step of the whole model, ZeRO-2", two, sizes)
    if peak := two.peak_bytes / GIB:
        figure = f"{peak:.1f} GiB allocated, {need:.1f} estimated"
        expected = f"at most {SPARE:.2f} of the estimate: `hora check` keeps that free"
        yield Line("memory", peak <= SPARE * need, figure, expected)
    three, _ = stage_step(sizes, 3)
    apart = abs(three.norm / two.norm - 1)
    yield Line("ZeRO-3 on one rank, norm", apart < 1e-2, f"{apart:.1e} apart", "below 1e-2")
    yield Line("ZeRO-3 on one rank, time", True, f"{three.seconds / two.seconds:.2f} of ZeRO-2's", "1 to 1.5")


def stage_step(sizes: Sizes, stage: int) -> tuple[Result, float]:
    """A step under one stage of ZeRO, and the GiB that were estimated for it (0 where shards hide sizes)."""
    from hora_rl.deploy.checks.estimate import Estimate, ModelShape

    samples = ragged_samples(sizes.samples, sizes.whole["vocab_size"], sizes.longest)
    settings = {"zero_stage": stage, "tokens_per_microbatch": sizes.budget, "gradient_checkpointing": True}
    with engine_of(sizes.whole, sizes.dtype, sizes.longest, **settings) as engine:
        config = engine._config
        estimate = Estimate(config, ModelShape.of(engine.hf, config.learner.lora))
        need = estimate.rank().gib if stage < 3 else 0.0
        return measure(engine, samples, sizes.budget, sizes.steps), need


def speed(name: str, result: Result, sizes: Sizes) -> Iterator[Line]:
    """Judged by a person: what is right differs from card to card."""
    mfu = result.mfu(sizes.dtype)
    share = "MFU unknown: learner/flops.py has no peak for this device" if mfu is None else f"MFU {mfu:.1%}"
    figure = f"{result.seconds:.2f} s, {result.tokens / result.seconds:,.0f} tokens/s, {share}"
    yield Line(name, True, figure, EXPECTED_MFU)


def wide(sizes: Sizes) -> Iterator[Line]:
    """Layers as wide as a 7B model's, and what its weights take to rank 0's host memory."""
    from hora_rl.learner.weights.host_copy import HostCopy

    samples = ragged_samples(sizes.samples // 2, sizes.wide["vocab_size"], sizes.longest)
    settings = {"gradient_checkpointing": True, "tokens_per_microbatch": sizes.budget}
    with engine_of(sizes.wide, sizes.dtype, sizes.longest, **settings) as engine:
        result = measure(engine, samples, sizes.budget, sizes.steps)
        yield from speed("four layers of a 7B's width", result, sizes)
        copy = HostCopy(engine, 0)
        gather = partial(copy.snapshot, 1, torch.device("cpu"))
        taken = gather()
        size = taken.nbytes if taken else 0
        found, plain = rate(gather, size, sizes.device), copy_rate(sizes)
    figure = f"{found:.1f} GB/s, a plain copy {plain:.1f}"
    yield Line("gather", found > plain / 2 or not sizes.judged, figure, "at least half of a plain copy")


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


def lacking(package: str, device: torch.device) -> str:
    """Why a check of this package cannot run; empty if it can."""
    if find_spec(package) is None:
        return f"{package} is not installed"
    return "" if device.type == "cuda" else "needs a GPU"


@dataclass(frozen=True, slots=True)
class StandIn:
    """Hands on what `src` broadcasts to the one other member, in order."""

    sends: bool
    sent: deque[torch.Tensor] = field(default_factory=deque)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        if self.sends:
            self.sent.append(tensor.clone())
        else:
            tensor.copy_(self.sent.popleft())


def tensors_of(size: int, device: torch.device) -> dict[str, torch.Tensor]:
    """About `size` bytes in two types: small tensors, and one that is larger than a buffer."""
    each = max(8, size // PIECES // 2 // 4 * 4)
    made = {
        f"layer.{i}": torch.randn(each // 4, 4, device=device).to(torch.float32 if i % 2 else torch.bfloat16)
        for i in range(PIECES)
    }
    return {
        "embedding": torch.randn(each * 3, 2, device=device),
        **made,
        "norm": torch.ones(3, device=device),
    }


def packed_transfer(size: int, device: torch.device) -> tuple[bool, str]:
    """Whether every tensor arrived as it was by vLLM's packed transfer, which `weights.transport: nccl` uses,
    over a communicator that stands in for NCCL; how fast and in how many messages. Needs a GPU's streams."""
    from vllm.distributed.weight_transfer.packed_tensor import (
        packed_nccl_broadcast_consumer,
        packed_nccl_broadcast_producer,
    )

    source, arrived = tensors_of(size, device), dict[str, torch.Tensor]()
    total, sender = sum(t.nbytes for t in source.values()), StandIn(sends=True)
    began = time.perf_counter()
    packed_nccl_broadcast_producer(
        iter(source.items()), sender, 0, lambda item: item[1], buffer_size_bytes=total // 8
    )
    messages = len(sender.sent)
    packed_nccl_broadcast_consumer(
        iter((name, (list(t.shape), t.dtype)) for name, t in source.items()),
        StandIn(sends=False, sent=sender.sent),
        0,
        lambda pairs: arrived.update((name, t.clone()) for name, t in pairs),
        buffer_size_bytes=total // 8,
        device=device,
    )
    same = arrived.keys() == source.keys() and all(torch.equal(arrived[n], t) for n, t in source.items())
    seconds = time.perf_counter() - began
    return same and messages > 1, f"{messages} messages, {total / 1e9 / seconds:.2f} GB/s there and back"


def engine_side(sizes: Sizes) -> Iterator[Line]:
    """vLLM's part, where it is installed."""
    name, expected = "vLLM's packed transfer", "every tensor as it was"
    if why := lacking("vllm", sizes.device):
        yield Line(name, None, why)
    else:
        yield Line(name, *packed_transfer(sizes.copied, sizes.device), expected)
    yield Line("vLLM's sleep and wake", None, "run `make test-gpu`, which starts engines")


CHECKS = (ceilings, head, attention, steps, wide, adapter, engine_side)


def lines_of(check: str, *, small: bool) -> Iterator[Line]:
    """The lines of one check, which runs in a process of its own: what it leaves in memory ends with it, and
    a check that fails or is killed is one FAIL with its reason."""
    command = [sys.executable, "-m", "benchmarks.gpu_acceptance", "--check", check, *["--small"] * small]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}  # all that is read was made here
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=offline
        )
    except subprocess.TimeoutExpired:
        yield Line(check, False, f"not done after {LIMIT_S:g} s", "an end")
        return
    for text in ran.stdout.splitlines():
        if text.startswith(MARK):
            yield Line(**json.loads(text.removeprefix(MARK)))
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or ["nothing on stderr"]
        yield Line(check, False, f"status {ran.returncode}: {said[-1][:300]}", "an end")


def run_check(name: str, sizes: Sizes) -> None:
    """In the process of one check: its lines as JSON. What it raises is its last line; on stderr the
    libraries' own words at the end would follow the reason."""
    from hora_rl.learner.device import set_device

    config = configuration(".", "float32", 64)
    join_alone(set_device(config.learner, config.run.seed, 0))
    try:
        for line in {check.__name__: check for check in CHECKS}[name](sizes):
            print(MARK + json.dumps(asdict(line)), flush=True)
    except Exception as error:  # noqa: BLE001  the next checks run all the same
        why = f"{type(error).__name__}: {one_line(error)}"
        print(MARK + json.dumps(asdict(Line(name, False, why, "an end"))), flush=True)
        os._exit(0)  # a card in an error state may keep the group from ending
    torch.distributed.destroy_process_group()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny shapes, on CPU too")
    parser.add_argument("--check", choices=[check.__name__ for check in CHECKS], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    cuda = torch.cuda.is_available()
    if not cuda and not options.small:
        print("no NVIDIA GPU that torch can use: nothing is measured; --small runs on CPU", file=sys.stderr)
        return 2
    if options.check:
        run_check(options.check, Sizes.of(options.small))
        return 0
    name = torch.cuda.get_device_name() if cuda else "CPU"
    print(f"{name}, torch {torch.__version__}{', small shapes' if options.small else ''}\n", flush=True)
    print("| | check | found | expected |\n|---|---|---|---|", flush=True)
    failed = 0
    for check in CHECKS:
        for line in lines_of(check.__name__, small=options.small):
            print(line, flush=True)
            failed += line.passed is False
    print(f"\n{failed} failed", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
