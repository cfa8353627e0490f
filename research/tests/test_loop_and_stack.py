"""A study in one process stands for the whole stack: at `max_staleness: 0` both have the same gradients,
yields and learning curves, within the spread of seeds."""

import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from research.study.cells import PRESETS, has_exact_success, load_base
from research.study.curve_sources import CURVES, exact_curve
from research.study.loop import run_cell
from research.tasks.build import build

STEPS, WARM_START = 6, 800
LOOP_SEEDS, STACK_SEEDS = range(8), range(3)
LIMIT = 0.9995
"""Quantile of Student's t within which a difference must lie: seven figures are compared."""

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task about half of whose groups have a hit."""
    folder = tmp_path_factory.mktemp("task") / "facts"
    build("facts", folder, steps=WARM_START)
    return folder


def settings(task: Path, out: Path, seed: int) -> list[str]:
    values = {
        "run.name": f"facts-seed{seed}",
        "run.seed": seed,
        "run.folder": out,
        "model.path": task / "model",
        "data.path": task / "trained.jsonl",
        "evaluation.path": None,
        "telemetry.http_port": 0,
        "rollout.group_size": 16,
        "rollout.pre_rollouts": 4,
        "rollout.shards": 1,
        "rollout.max_staleness": 0,
        "learner.steps": STEPS,
        "learner.optimizer.learning_rate": 1e-3,
    }
    return [f"{key}={json.dumps(value, default=str)}" for key, value in values.items()]


def figures_of(path: Path) -> dict[str, float]:
    """Gradient norms, shares of groups with a hit and with signal, and Pass@K at the end of one run."""
    first = json.loads(path.read_text())
    norm, hits, signal = ([s[key] for s in first["steps"]] for key in ("grad_norm", "hits", "signal"))
    end = first["curves"]["trained"][-1]
    return {
        "gradient of the first step": norm[0],
        "gradient of the last step": norm[-1],
        "mean gradient": float(np.mean(norm)),
        "hits": float(np.mean(hits)),
        "signal": float(np.mean(signal)),
        "Pass@1 at the end": end["pass@1"],
        "Pass@16 at the end": end["pass@16"],
    }


def on_the_stack(task: Path, out: Path, seed: int) -> dict[str, float]:
    overrides = settings(task, out, seed)
    options = [part for value in overrides for part in ("-s", value)]
    command = [str(Path(sys.executable).with_name("hora")), "run", str(PRESETS / "facts.yaml"), *options]
    environment = {**os.environ, "COLUMNS": "120"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=700, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    config = load_base("facts", overrides)
    assert has_exact_success(config)
    exact_curve(config)
    return figures_of(config.run.path / CURVES)


def test_the_loop_learns_as_the_whole_stack_does(task: Path, tmp_path: Path) -> None:
    configs = [load_base("facts", settings(task, tmp_path / "loop", seed)) for seed in LOOP_SEEDS]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        loop = [figures_of(pool.submit(run_cell, c, STEPS).result()) for c in configs]
    stack = [on_the_stack(task, tmp_path / "stack", seed) for seed in STACK_SEEDS]
    bound, lines = float(stats.t.ppf(LIMIT, len(loop) + len(stack) - 2)), []
    for name in loop[0]:
        a, b = (np.array([figures[name] for figures in side]) for side in (loop, stack))
        t = float(stats.ttest_ind(a, b).statistic)
        lines.append(f"{name}: loop {a.mean():.4f} ± {a.std(ddof=1):.4f}, stack {b.mean():.4f}, t {t:+.2f}")
        assert abs(t) < bound, "\n".join(lines)
    hits = np.mean([figures["hits"] for figures in loop])
    assert 0.2 < hits < 0.9, f"{hits:.0%} of groups have a hit: the comparison says nothing"


def test_dynamic_sampling_updates_once_it_holds_as_many_groups_with_signal_as_a_batch(
    task: Path, tmp_path: Path
) -> None:
    config = load_base("facts", settings(task, tmp_path, 0))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        path = pool.submit(partial(run_cell, dynamic=True), config, STEPS).result()
    size, held, expected = config.rollout.prompts_per_batch, 0, []
    for step in json.loads(path.read_text())["steps"]:
        held += round(size * step["signal"])
        expected.append((held >= size, size * config.rollout.group_size))
        held = 0 if held >= size else held
        assert (step["grad_norm"] > 0, step["rollouts"]) == expected[-1]
    assert {updated for updated, _ in expected} == {False, True}
