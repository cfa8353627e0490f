"""Compare the estimate of `hora check --estimate` with a run's measurements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.deploy.checks.estimate import GIB
from hora_rl.deploy.checks.memory import model_shape
from hora_rl.deploy.checks.step_costs import COPY_BYTES, MEAN, WANTED_MFU, StepArithmetic, arithmetic
from hora_rl.deploy.monitor.balance import KEPT, Metrics, balance, split_of
from hora_rl.evaluation.report.predicted import Predicted
from hora_rl.evaluation.report.predicted import PredictedRow as Row
from hora_rl.evaluation.run_folders import Array, load_run, records
from hora_rl.learner.flops import peak_flops


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians over a run's steps, without the first, which compiles and allocates."""

    steps: dict[str, Array]

    def of(self, name: str) -> float | None:
        values = self.steps.get(name, np.zeros(0))
        values = values[1:] if len(values) > 1 else values
        known = values[~np.isnan(values)]
        return float(np.median(known)) if len(known) else None


def predict(folder: Path) -> Predicted:
    """Predicted and measured values of a run. Raises RunFolderError if its folder cannot be read."""
    measured = Measured(load_run(folder).steps)
    if measured.of("time/step") is None:
        return Predicted("No step has been recorded: nothing to compare.")
    try:
        config = load(str(folder / "config.yaml"))
    except ConfigError as error:
        return Predicted(f"Nothing is predicted: {error}")
    shape, trained = model_shape(config), folder / "model"
    if shape is None and trained.is_dir():  # same shape as the initial policy
        model = config.model.model_copy(update={"path": str(trained)})
        shape = model_shape(config.model_copy(update={"model": model}))
    if shape is None:
        return Predicted(
            f"Nothing is predicted: the shape of model.path ({config.model.path}) cannot be read, and "
            "RUN/model is not there."
        )
    device = device_of(folder)
    peak = peak_flops(device, config.model.dtype)
    found = arithmetic(config, shape)
    says = (
        f"As hora check --estimate: responses of {MEAN:g} times and prompts of half of their limits. Device "
        f"of the learner: {device or 'not recorded'}"
    )
    rows = (
        *_work(found, measured),
        *_seconds(config.learner.workers, config.weights.transport, found, peak, measured),
    )
    waits = idle_side(config, folder, records(folder / "steps.jsonl"))
    return Predicted(f"{says}, {_speed(peak)}.{f' At the end: {waits}.' if waits else ''}", rows)


def idle_side(config: Config, folder: Path, steps: Sequence[Metrics]) -> str:
    """The side that idled in the newest steps, and a split that would balance the run; empty if none did."""
    learner = config.learner
    split = split_of(config.generator, learner, device_of(folder))
    found = balance(steps[-KEPT:], learner.steps, config.rollout.max_staleness, split)
    return "; ".join(filter(None, (found.says, found.remedy))) if found else ""


def _work(found: StepArithmetic, measured: Measured) -> list[Row]:
    """Values that depend only on configuration and shape."""
    lengths = "differs as far as lengths do"
    flops = measured.of("flops")
    trained = None if flops is None else flops / 1e12
    without = f"{lengths}; groups without signal cost nothing"
    return [
        Row("Rollouts of a step", "", found.rollouts, measured.of("rollouts")),
        Row("Response tokens of a step", "", found.responses, measured.of("tokens"), lengths),
        Row("Model FLOPs of the learner", "TFLOPs", found.flops / 1e12, trained, without),
        Row("Micro-batches of a rank", "", found.micro_batches, measured.of("micro_batches"), lengths),
        Row("A weight update", "bytes", found.published * GIB, measured.of("weights/bytes")),
    ]


def _seconds(
    ranks: int, transport: str, found: StepArithmetic, peak: float | None, measured: Measured
) -> list[Row]:
    """Seconds of a step by part. Not predicted without a known peak."""
    unknown = "no figure of this device"
    compute = None if peak is None else found.flops / (WANTED_MFU * peak * ranks)
    copy = None if peak is None else found.published * GIB / COPY_BYTES
    rows = [
        ("wait", "Waiting for groups", None, "follows from the generators, which memory bounds"),
        ("forward_backward", "Forward, backward, optimizer", compute, f"{WANTED_MFU:.0%} of the peak"),
        ("gather", "Weights to host memory", copy, f"{COPY_BYTES / 1e9:g} GB/s, pinned"),
        ("transfer", f"Weights to replicas, {transport}", None, "no figure of the network"),
        ("load", "Longest pause of a replica", None, unknown),
        ("checksum", "Checksum in it", None, unknown),
        ("step", "Whole step", None, "waiting is not predicted"),
    ]
    missing = {"forward_backward", "gather"} if peak is None else set()
    return [
        Row(title, "s", value, measured.of(f"time/{key}"), unknown if key in missing else why)
        for key, title, value, why in rows
    ]


def _speed(peak: float | None) -> str:
    if peak is None:
        return (
            "whose peak is not known: tokens, FLOPs and bytes are predicted, seconds are not (the table of "
            "peaks has NVIDIA cards in 16 bits)"
        )
    return f"peak {peak / 1e12:,.0f} TFLOP/s"


def device_of(folder: Path) -> str:
    """Name of the learner's device; empty for older runs."""
    path = folder / "learner.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["device"]) if path.exists() else ""
