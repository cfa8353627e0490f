"""What RUN/rollouts costs: stretches of learner steps with and without it in turns, and the writer alone on
long completions.

    python -m benchmarks.rollout_files [--pairs 8] [--steps 5] [--rollouts 640] [--tokens 34]

The step is the real one: DeepSpeed on the demo's model, the groups of a batch, their file written in the
background while the next step trains. A stretch ends as at a checkpoint, with every file on the disk.
Stretches with the writer and without alternate, and which comes first alternates too. Three figures:

- throughput of the learner, both sides: what counts, and what a busy machine blurs;
- how long steps waited for the writer: its cost on their path;
- processor time of the writer's thread: exact on a busy machine too. It delays steps only where the learner
  leaves no core idle.

A run also generates, so the share of a run's throughput is smaller than the share of a learner's step. The
second table is the processor time of the writer alone, for completions of 2,000 tokens too, on which the
demo's model cannot be trained.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from common.config import Config
from common.load import load
from common.prompts import load_tokenizer, render
from common.rollout_files import path_of
from common.types import Group, Origin
from learner.batch import micro_batches, samples_at
from learner.engine import Engine
from learner.extensions import compile_extensions
from learner.rollout_writer import RolloutFiles
from tests.support.groups import group, rollout

PROMPTS = 40


def config_of(folder: Path, *more: str) -> Config:
    return load("tiny", [f"run.folder={folder}", f"rollout.prompts_per_batch={PROMPTS}", *more])


def batch(config: Config, rollouts: int, tokens: int) -> list[Group]:
    """`PROMPTS` groups of completions of about `tokens` tokens, every other a hit."""
    rng, tokenizer = np.random.default_rng(0), load_tokenizer(config.model.path)
    text = tokenizer.encode("<think>7+8+0=15,3+5+1=9</think><answer>95</answer>", add_special_tokens=False)
    prompt = render(tokenizer, "57+38=?", config.data)
    origin = Origin("0123abcd", *(1.7e9 + s for s in (0.0, 0.1, 1.0, 1.1)))
    made = []
    for index in range(PROMPTS):
        drawn = []
        for j in range(rollouts // PROMPTS):
            n = int(rng.integers(tokens // 2, tokens * 3 // 2))
            said = np.resize(rng.permutation(text), n)
            drawn.append(rollout(said, logprobs=-rng.exponential(0.4, n), success=bool(j % 2)))
        made.append(group(index, [replace(r, origin=origin) for r in drawn], prompt=prompt))
    return made


class Timed(RolloutFiles):
    """Counts the processor seconds of the thread that writes."""

    used = 0.0

    def _write(self, step: int, groups: Sequence[Group]) -> None:
        began = time.thread_time()
        super()._write(step, groups)
        self.used += time.thread_time() - began


@dataclass(frozen=True)
class Stretch:
    """Seconds of some steps: by the clock, of all processors, of the writer's thread, and spent waiting for
    the writer, step by step and at the end."""

    wall: float
    processor: float
    writer: float
    waited: list[float]


class Learner:
    """Optimizer steps on `groups`, as the learner takes them, and their files."""

    def __init__(self, config: Config, groups: Sequence[Group], folder: Path) -> None:
        self.engine = Engine(config, 0, 1)
        self.groups = list(groups)
        samples = samples_at(config, self.groups, 0)
        self.micro, _ = micro_batches(samples, config.learner.tokens_per_microbatch, packed=False)
        self.files = Timed(config, load_tokenizer(config.model.path), folder)
        self.number = 0

    def train(self, steps: int, *, write: bool) -> Stretch:
        began, used, thread = time.perf_counter(), time.process_time(), self.files.used
        waited = []
        for _ in range(steps):
            self.engine.step(self.micro, lambda: None)
            asked = time.perf_counter()
            if write:
                self.files.write(self.number, self.groups)
                self.number += 1
            waited.append(time.perf_counter() - asked)
        asked = time.perf_counter()
        self.files.flush()
        ended = time.perf_counter()
        return Stretch(
            ended - began, time.process_time() - used, self.files.used - thread, [*waited, ended - asked]
        )


def training(
    pairs: int, steps: int, rollouts: int, tokens: int, folder: Path
) -> tuple[list[Stretch], list[Stretch]]:
    """Stretches without files, and with."""
    config = config_of(folder)
    learner = Learner(config, batch(config, rollouts, tokens), folder)
    learner.train(1, write=True)
    sides: tuple[list[Stretch], list[Stretch]] = ([], [])
    for pair in range(pairs):
        for write in (pair % 2 == 0, pair % 2 == 1):
            sides[write].append(learner.train(steps, write=write))
    learner.files.close()
    return sides


def writing(rollouts: int, tokens: int, folder: Path, *, logprobs: bool) -> tuple[float, float]:
    """Processor seconds of one file, and its bytes per token."""
    config = config_of(folder, f"telemetry.rollouts_logprobs={str(logprobs).lower()}")
    groups = batch(config, rollouts, tokens)
    files = RolloutFiles(config, load_tokenizer(config.model.path), folder)
    taken = []
    for step in range(3):
        began = time.process_time()
        files.write(step, groups)
        files.flush()
        taken.append(time.process_time() - began)
    files.close()
    return statistics.median(taken), path_of(folder, 2).stat().st_size / sum(g.tokens for g in groups)


def compared(without: Sequence[Stretch], beside: Sequence[Stretch], rollouts: int) -> str:
    """Both sides in lines."""
    steps = len(beside[0].waited) - 1
    lines = []
    for name in ("wall", "processor"):
        a, b = ([getattr(s, name) for s in side] for side in (without, beside))
        ratios = [with_ / bare for bare, with_ in zip(a, b, strict=True)]
        lines.append(
            f"{name}: {statistics.median(a) / steps:.3f} s a step without files, "
            f"{statistics.median(b) / steps:.3f} s with; ratio of the pairs {min(ratios):.3f} to "
            f"{max(ratios):.3f}, median {statistics.median(ratios):.3f}"
        )
    rates = [statistics.median(rollouts * steps / s.wall for s in side) for side in (without, beside)]
    waits = sorted(w for s in beside for w in s.waited[:-1])
    thread = statistics.median(s.writer for s in beside) / steps
    share = statistics.median(s.writer / s.processor for s in beside)
    ends = statistics.median(s.waited[-1] for s in beside)
    paths = statistics.median(sum(s.waited) / s.wall for s in beside)
    lines += [
        f"throughput: {rates[0]:.0f} rollouts/s without files, {rates[1]:.0f} with (medians of stretches)",
        f"the writer's thread: {thread * 1e3:.1f} ms of processor a step, {share:.2%} of a step's",
        f"on the path of a step: {statistics.median(waits) * 1e3:.2f} ms in the median, at most "
        f"{waits[-1] * 1e3:.1f} ms; {ends * 1e3:.1f} ms at a checkpoint; together {paths:.2%} of a stretch",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=640)
    parser.add_argument("--tokens", type=int, default=34)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("LOCAL_RANK", "0")
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        compile_extensions(lambda doing: None)
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        without, beside = training(
            options.pairs, options.steps, options.rollouts, options.tokens, Path(folder) / "train"
        )
        console.print(
            f"{options.pairs} pairs of {options.steps} steps of {options.rollouts} rollouts of about "
            f"{options.tokens} tokens:"
        )
        console.print(compared(without, beside, options.rollouts), soft_wrap=True)
        table = Table("rollouts", "tokens", "log-probs", "processor seconds a step", "bytes per token")
        for tokens in (options.tokens, 2000):
            for logprobs in (False, True):
                place = Path(folder) / f"{tokens}-{logprobs}"
                seconds, size = writing(options.rollouts, tokens, place, logprobs=logprobs)
                table.add_row(
                    str(options.rollouts),
                    f"{tokens:,}",
                    "yes" if logprobs else "no",
                    f"{seconds:.2f}",
                    f"{size:.2f}",
                )
    console.print(table)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
