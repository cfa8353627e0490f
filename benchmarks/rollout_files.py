"""What RUN/rollouts costs: learner steps with and without it in turns, and the writer alone on long
completions.

    python -m benchmarks.rollout_files [--pairs 8] [--rollouts 640] [--tokens 34]

The step is the real one: DeepSpeed on the demo's model, the groups of a batch, their file written in the
background while a step trains. A step without the writer and one with it alternate, and which comes first
alternates too. A run also generates, so the share of a run's throughput is smaller than the share of a
learner's step. The second table is the processor time of the writer alone, for completions of 2,000 tokens
too, on which the demo's model cannot be trained.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
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
from learner.batch import micro_batches
from learner.engine import Engine
from learner.extensions import compile_extensions
from learner.rollouts import RolloutFiles
from learner.train import samples_at
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


class Step:
    """One optimizer step on `groups`, as the learner takes it, and its file."""

    def __init__(self, config: Config, groups: Sequence[Group], folder: Path) -> None:
        self.engine = Engine(config, 0, 1)
        self.groups = list(groups)
        samples = samples_at(config, self.groups, 0)
        self.micro, _ = micro_batches(samples, config.learner.tokens_per_microbatch, packed=False)
        self.files = RolloutFiles(config, load_tokenizer(config.model.path), folder)
        self.number = 0

    def seconds(self, *, write: bool) -> tuple[float, float]:
        """Wall and processor time of a step while the file of the step before is written, or is not. The file
        is awaited within the time, as the next `write` would."""
        self.files.flush()
        began, used = time.perf_counter(), time.process_time()
        if write:
            self.files.write(self.number, self.groups)
            self.number += 1
        self.engine.step(self.micro, lambda: None)
        self.files.flush()
        return time.perf_counter() - began, time.process_time() - used


Times = list[tuple[float, float]]


def training(pairs: int, rollouts: int, tokens: int, folder: Path) -> tuple[Times, Times]:
    """Times of steps without a file, and with one."""
    config = config_of(folder)
    step = Step(config, batch(config, rollouts, tokens), folder)
    step.seconds(write=True)
    without: Times = []
    beside: Times = []
    for pair in range(pairs):
        for write in (pair % 2 == 0, pair % 2 == 1):
            (beside if write else without).append(step.seconds(write=write))
    step.files.close()
    return without, beside


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


def compared(name: str, without: Sequence[float], beside: Sequence[float]) -> str:
    """Medians of both sides, and of the ratio of the pairs."""
    ratios = [b / a for a, b in zip(without, beside, strict=True)]
    each = ", ".join(f"{r:.3f}" for r in ratios)
    return (
        f"{name}: {statistics.median(without):.3f} s without files, {statistics.median(beside):.3f} s with; "
        f"ratio of each pair {each}, median {statistics.median(ratios):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=8)
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
        without, beside = training(options.pairs, options.rollouts, options.tokens, Path(folder) / "train")
        console.print(f"a step of {options.rollouts} rollouts of about {options.tokens} tokens:")
        for kind, name in enumerate(("wall", "processor")):
            console.print(
                compared(name, [t[kind] for t in without], [t[kind] for t in beside]), soft_wrap=True
            )
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
