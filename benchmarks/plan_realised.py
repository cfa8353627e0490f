"""What `hora plan` predicts against what the first batches of real runs realise, on recall tasks.

    python -m deploy.tasks.build facts tasks/facts
    python -m benchmarks.plan_realised tasks/facts [--seeds 10] [--epochs 2] [--out FILE]

For each seed the training prompts are sampled 64 times each and planned for shards of the run's size; then
one cell a rule (`deploy.study.loop`) samples, allocates and takes its optimizer steps for whole epochs, with
a learning rate at which no weight moves. Hits and signal of all its batches stand against the plan: both see
each training prompt equally often. One line a rule: means, and in how many seeds the difference is within 2
points or the realised value within the interval.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import AutoModelForCausalLM

from actors.coordinator.shard import Draw
from common.config import Config
from common.load import load
from common.prompts import load_tokenizer
from deploy.study.local_sampler import LocalSampler
from deploy.study.loop import run_cell_apart, training_prompts
from deploy.tasks.recall import load_task
from evaluation.plan.counts import Counts
from evaluation.plan.forecast import Row, forecast
from evaluation.plan.outcome import Arm

TRIALS, CLOSE = 64, 0.02
STILL = 1e-12
"""A learning rate below the resolution of float32 weights."""
SIZE, PRE_ROLLOUTS, BATCHES = 32, 8, 3
ARMS = tuple(
    Arm(rule, stop, rounds, PRE_ROLLOUTS, SIZE)
    for rule, stop, rounds in (
        ("uniform", "none", 1),
        ("hit_utility", "none", 4),
        ("first_hit", "hit", 4),
    )
)


@dataclass(frozen=True, slots=True)
class Compared:
    """Shares of prompts with a hit and of groups with signal: predicted, with its interval, and realised."""

    arm: Arm
    seed: int
    hits: tuple[float, float, float]
    signal: tuple[float, float, float]
    found_hits: float
    found_signal: float

    @property
    def held(self) -> tuple[bool, bool]:
        return _held(self.hits, self.found_hits), _held(self.signal, self.found_signal)


def _held(predicted: tuple[float, float, float], found: float) -> bool:
    """Whether `found` is within 2 points of the prediction or within its interval."""
    mean, low, high = predicted
    return abs(found - mean) <= CLOSE or low <= found <= high


def configuration(task: Path, folder: Path, arm: Arm, seed: int, epochs: int) -> Config:
    """A cell of whole epochs of `BATCHES` batches on weights that do not move."""
    prompts = len((task / "trained.jsonl").read_text().splitlines())
    settings = {
        "run.name": f"{arm.rule}-seed{seed}",
        "run.folder": folder,
        "run.seed": seed,
        "model.path": task / "model",
        "data.path": task / "trained.jsonl",
        "evaluation.path": None,
        "rollout.prompts_per_batch": prompts // BATCHES,
        "rollout.group_size": arm.group_size,
        "rollout.pre_rollouts": arm.pre_rollouts,
        "rollout.shards": 1,
        "rollout.max_staleness": 0,
        "rollout.max_response_tokens": 16,
        "allocation.rule": arm.rule,
        "allocation.rounds": arm.rounds,
        "allocation.stop": arm.stop,
        "allocation.warmup.enabled": False,
        "learner.steps": BATCHES * epochs,
        "learner.optimizer.learning_rate": STILL,
    }
    return load("tiny", [f"{key}={json.dumps(value, default=str)}" for key, value in settings.items()])


def count(config: Config, trials: int) -> Counts:
    """Counts of all training prompts on the model as it is, `trials` completions each."""
    tokenizer = load_tokenizer(config.model.path, trust_remote_code=False)
    prompts = training_prompts(config, load_task(Path(config.model.path).parent), tokenizer)
    model = AutoModelForCausalLM.from_pretrained(config.model.path).eval()
    sampler = LocalSampler(model, tokenizer, config)
    groups = [asyncio.run(sampler.sample(p, Draw(0, 0, 0, trials))) for p in prompts]
    return Counts(
        np.array([sum(r.success for r in group) for group in groups], dtype=np.int64),
        np.full(len(groups), trials, dtype=np.int64),
        np.array([float(sum(len(r.tokens) for r in group)) for group in groups]),
    )


def realise(config: Config) -> tuple[float, float]:
    """Shares of hits and signal over all batches of the cell of `config`."""
    steps = json.loads(run_cell_apart(config, every=config.learner.steps).read_text())["steps"]
    return float(np.mean([s["hits"] for s in steps])), float(np.mean([s["signal"] for s in steps]))


def compare(task: Path, folder: Path, seed: int, epochs: int, arms: Sequence[Arm] = ARMS) -> list[Compared]:
    """One seed: its own counts, its plan, a cell for each arm. Counts and cells share no random numbers."""
    counts = count(configuration(task, folder, arms[0], 10_000 + seed, epochs), TRIALS)
    shard = len(counts.trials) // BATCHES
    rows = forecast(counts, arms, shard).rows
    return [
        _compared(arm, seed, row, realise(configuration(task, folder, arm, seed, epochs)))
        for arm, row in zip(arms, rows, strict=True)
    ]


def _compared(arm: Arm, seed: int, row: Row, found: tuple[float, float]) -> Compared:
    hits, signal = (row.hits, row.hits_low, row.hits_high), (row.signal, row.signal_low, row.signal_high)
    return Compared(arm, seed, hits, signal, *found)


def table(found: Sequence[Compared]) -> str:
    """Markdown: a line for each arm and quantity; difference and its standard error over seeds, in points."""
    lines = [
        "| rule | of | predicted % | realised % | realised - predicted | largest of a seed | held |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for arm in dict.fromkeys(c.arm for c in found):
        own = [c for c in found if c.arm == arm]
        name = arm.rule + (f", stop at {arm.stop}" if arm.stop != "none" else "") + f" ×{arm.rounds}"
        hits = [(c.hits[0], c.found_hits, c.held[0]) for c in own]
        signal = [(c.signal[0], c.found_signal, c.held[1]) for c in own]
        lines += [_line(name, "hits", hits), _line(name, "signal", signal)]
    return "\n".join(lines)


def _line(name: str, of: str, own: Sequence[tuple[float, float, bool]]) -> str:
    predicted, realised, held = (np.array(column) for column in zip(*own, strict=True))
    off = 100 * (realised - predicted)
    error = f" ± {off.std(ddof=1) / len(off) ** 0.5:.1f}" if len(off) > 1 else ""
    return (
        f"| {name} | {of} | {100 * predicted.mean():.1f} | {100 * realised.mean():.1f} | "
        f"{off.mean():+.1f}{error} | {np.abs(off).max():.1f} | {held.sum()} of {len(held)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="hora plan against the first batches of real runs.")
    parser.add_argument("task", type=Path, help="folder of a recall task")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="file for the table, written after each seed")
    chosen = parser.parse_args()
    found = list[Compared]()
    for seed in range(chosen.seeds):
        with tempfile.TemporaryDirectory() as folder:
            found += compare(chosen.task.resolve(), Path(folder), seed, chosen.epochs)
        if chosen.out is not None:
            chosen.out.write_text(table(found) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
