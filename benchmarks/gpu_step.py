"""One training step of the learner's own engine on random weights: what `benchmarks.gpu_acceptance` measures.

Completions have lognormal lengths in ragged groups; a step is forward, backward and AdamW as in training. How
MFU counts is in learner/model/flops.py. Needs torch, transformers, deepspeed and pydantic, not vLLM, Ray or
Redis.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hora_rl.common.config import Config
from hora_rl.learner.model.flops import peak_flops
from hora_rl.learner.rows.batch import micro_batches
from hora_rl.learner.rows.packing import Sample
from tests.support.samples import sample
from tests.support.tiny_qwen2 import NAMES, SHAPES

if TYPE_CHECKING:
    from hora_rl.learner.model.engine import Engine

SHAPE_1_5B: dict[str, Any] = dict(zip(NAMES, SHAPES["1.5B"], strict=True))
SHAPE_1_5B["max_position_embeddings"] = 32768
SMALL = SHAPE_1_5B | dict(zip(NAMES, (512, 64, 128, 2, 4), strict=False))


@dataclass(frozen=True, slots=True)
class Result:
    """Median step. `tokens`: real ones of a step, prompts included; `flops` what they need at least; `norm`
    of the first step's gradient."""

    seconds: float
    tokens: int
    flops: float
    peak_bytes: int
    norm: float

    def mfu(self, dtype: str) -> float | None:
        """None where the device's peak is not known."""
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
        peak = peak_flops(name, dtype)
        return self.flops / self.seconds / peak if peak else None


def ragged_samples(count: int, vocabulary: int, longest: int, seed: int = 0) -> list[Sample]:
    """Completions of lognormal length (median a quarter of `longest`), cut there, behind prompts of 60 to
    300."""
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        n = int(np.clip(rng.lognormal(np.log(longest / 4), 0.6), 1, longest))
        prompt = rng.integers(0, vocabulary, int(rng.integers(60, 300)))
        tokens, advantage = rng.integers(0, vocabulary, n), float(rng.normal())
        samples.append(sample(prompt, tokens, -np.log(vocabulary), advantage, 1 / (count * longest)))
    return samples


@contextmanager
def engine_of(shape: dict[str, Any], dtype: str, longest: int, **learner: object) -> Iterator[Engine]:
    """The learner's engine around a random model of this shape; gone with the block, its memory too."""
    from hora_rl.learner.model.engine import Engine

    with tempfile.TemporaryDirectory() as folder:
        random_model(shape, dtype, Path(folder))
        engine = Engine(configuration(folder, dtype, longest, **learner), rank=0, world=1)
    try:
        yield engine
    finally:
        engine._engine.destroy()  # its hooks would keep optimizer and model alive
        del engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def random_model(shape: dict[str, Any], dtype: str, folder: Path) -> None:
    """Write a Qwen2 of this shape."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # 1.5B numbers take a CPU long
        Qwen2ForCausalLM(Qwen2Config(**shape)).to(getattr(torch, dtype)).save_pretrained(folder)


def synchronize() -> None:
    """Wait for the card, if any."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def configuration(model: str, dtype: str, longest: int, **learner: object) -> Config:
    settings = {"tokens_per_microbatch": 16384, "threads": torch.get_num_threads(), **learner}
    return Config.model_validate(
        {
            "model": {"path": model, "dtype": dtype},
            "data": {"path": "arithmetic"},
            "rollout": {"max_prompt_tokens": 300, "max_response_tokens": longest},
            "learner": settings,
        }
    )


def measure(engine: Engine, samples: Sequence[Sample], budget: int, steps: int) -> Result:
    """`steps` steps on `samples` after one that pays for preparation."""
    rows = [[s] for s in samples]
    micro, _ = micro_batches(rows, budget, engine.multiple)
    first, cuda = engine.step(micro), torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        engine.step(micro)
        synchronize()
        seconds.append(time.perf_counter() - started)
    return Result(
        seconds=statistics.median(seconds),
        tokens=sum(s.length for s in samples),
        flops=engine.shape.flops(rows),
        peak_bytes=torch.cuda.max_memory_allocated() if cuda else 0,
        norm=first.grad_norm,
    )


def join_alone(backend: str) -> None:
    """A process group of one, meeting in a file: no port is needed. DeepSpeed takes it over."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(alone | os.environ)
    with tempfile.NamedTemporaryFile(delete=False) as store:
        torch.distributed.init_process_group(
            backend, init_method=f"file://{store.name}", rank=0, world_size=1
        )
