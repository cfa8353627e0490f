"""The report of a study: one row per arm, intervals over seeds and problems, differences on the same seeds.

OUT/report.html  everything, figures inside      OUT/report.md  the tables      OUT/*.png, *.svg  the figures
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hora_rl.common.errors import HoraError
from hora_rl.evaluation.benchmarks import held_out_name
from hora_rl.evaluation.pass_at_k import Estimate
from hora_rl.evaluation.report.figures import (
    allocation_figure,
    arms_figure,
    difference_figure,
    pass_at_k_figure,
    save,
)
from hora_rl.evaluation.report.pages import inline_svg, write_page
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import Run, RunFolderError, load_run
from research.report.study_statistics import (
    Mean,
    estimate,
    matched,
    mean_over_seeds,
    paired,
    per_problem,
    unmatched,
)
from research.report.study_text import COUNTS, markdown

Arms = Mapping[str, Mapping[int, Run]]
CURVES = (
    ("success", "Success on training prompts"),
    ("groups/hit", "Share of prompts with a hit"),
    ("groups/zero_signal", "Share of groups without signal"),
    ("entropy", "Mean token entropy (nats)"),
    ("length/mean", "Mean response length (tokens)"),
)
NEAR_CEILING = 0.95


@dataclass(frozen=True, slots=True)
class Row:
    """One arm: Pass@K, the difference to the baseline (empty for it), and means over seeds by name."""

    arm: str
    seeds: int
    pass_at_k: list[Estimate]
    difference: list[Estimate]
    means: dict[str, Mean]


def write_study_report(
    out: Path, title: str, folders: Mapping[str, Mapping[int, Path]], baseline: str
) -> tuple[Path, list[str]]:
    """Report on the finished cells of `folders` (arm -> seed -> run folder) in `out`.

    Returns the page's path and what is not compute-matched (nothing, in a sound study). A cell that cannot be
    reported is named as missing, with the reason. Raises RunFolderError when there is no other.
    """
    arms, missing = _load(folders)
    flat = {f"{arm}-seed{s}": run for arm, runs in arms.items() for s, run in runs.items()}
    problems = unmatched(flat)
    ks, base = _shared_ks(arms), next((r for run in flat.values() for r in run.base()), None)
    rows = [_row(arm, runs, arms.get(baseline, {}), ks, arm == baseline) for arm, runs in arms.items()]
    start = estimate(per_problem([base], ks), ks) if base else []
    out.mkdir(parents=True, exist_ok=True)
    figures = {}
    drawn = _figures(arms, rows, start, next(iter(flat.values())), baseline)
    for name, (heading, figure) in drawn.items():
        save(figure, out, name)
        figures[heading] = inline_svg(figure)
    facts = {
        "title": title,
        "baseline": baseline,
        "ks": ks,
        "rows": rows,
        "start": start,
        "problems": problems,
        "matched": matched(flat),
        "missing": missing,
        "about": _about(flat, base),
        "caveat": near_ceiling(rows, ks),
    }
    (out / "report.md").write_text(markdown(facts), encoding="utf-8")
    columns = [f"Pass@{k}" for k in ks]
    page = write_page(out / "report.html", "study", **facts, columns=columns, counts=COUNTS, figures=figures)
    return page, problems


def near_ceiling(rows: Sequence[Row], ks: Sequence[int]) -> str:
    """What to know of the intervals where a few problems decide; empty where no value is so high."""
    high = [
        f"{row.arm} Pass@{k}"
        for row in rows
        for k, e in zip(ks, row.pass_at_k, strict=True)
        if e.value >= NEAR_CEILING
    ]
    if not high:
        return ""
    return (
        f"Near the ceiling ({', '.join(high)}) a few problems decide, and intervals cover less than they "
        "promise: 90% in place of 95% with five seeds and 60 problems at a Pass@64 of 0.95. More problems "
        "help there, more seeds do not."
    )


def _load(folders: Mapping[str, Mapping[int, Path]]) -> tuple[dict[str, dict[int, Run]], list[str]]:
    """The cells that can be reported, with the evaluations of their own held-out problems alone; the others
    by name, each with its reason."""
    arms: dict[str, dict[int, Run]] = {}
    missing = []
    for arm, seeds in folders.items():
        for seed, folder in seeds.items():
            try:
                arms.setdefault(arm, {})[seed] = _cell(folder)
            except (HoraError, OSError, UnicodeDecodeError) as error:  # one cell costs itself alone
                missing.append(f"{arm}-seed{seed} ({error})")
    if not arms:
        raise RunFolderError(f"no cell of the study has finished: nothing to report on; {'; '.join(missing)}")
    return arms, missing


def _cell(folder: Path) -> Run:
    """Raises RunFolderError or ResultError for a cell that lacks what the report needs."""
    if not (folder / "groups.jsonl").exists():
        raise RunFolderError("not begun")
    run = load_run(folder)
    if absent := [name for name in NEEDED if name not in run.steps]:
        raise RunFolderError(f"{folder / 'steps.jsonl'}: holds no {', '.join(absent)}")
    steps, planned = len(run.steps["time/step"]), int(run.setting("learner.steps", 0))
    if steps < planned:
        raise RunFolderError(f"{steps} of {planned} steps")
    own = held_out_name(str(run.setting("evaluation.path")))
    # Its last evaluation, not one of those during training.
    run = replace(run, results=tuple(r for r in run.results if r.benchmark == own and r.step in (0, planned)))
    if not run.latest():
        raise RunFolderError("finished but not evaluated")
    return run


def _row(
    arm: str, runs: Mapping[int, Run], other: Mapping[int, Run], ks: Sequence[int], baseline: bool
) -> Row:
    both = [seed for seed in runs if seed in other]
    difference = []
    if both and not baseline:
        pairs = per_problem([_result(of[s]) for of in (runs, other) for s in both], ks)
        difference = paired(pairs[: len(both)], pairs[len(both) :], ks)
    values = per_problem([_result(run) for run in runs.values()], ks)
    means = {
        name: mean_over_seeds([measure(run) for run in runs.values()]) for name, measure in MEASURES.items()
    }
    return Row(arm, len(runs), estimate(values, ks), difference, means)


def _hits(run: Run) -> float:
    return float((run.groups["hits"] > 0).mean())


def _zero_signal(run: Run) -> float:
    return float(np.nanmean(run.steps["groups/zero_signal"]))


def _early_success(run: Run) -> float:
    """Mean over the steps: the area under the learning curve."""
    return float(np.nanmean(run.steps["success"]))


def _late_success(run: Run) -> float:
    values = run.steps["success"]
    return float(np.nanmean(values[-max(1, len(values) // 5) :]))


MEASURES: Mapping[str, Callable[[Run], float]] = {
    "success, all steps": _early_success,
    "success, last fifth": _late_success,
    "prompts with a hit": _hits,
    "groups without signal": _zero_signal,
    "rollouts": lambda run: float(run.groups["size"].sum()),
    "tokens": lambda run: float(run.groups["tokens"].sum()),
    "seconds": lambda run: float(run.steps["time/step"].sum()),
}
# What measures and curves take from steps.jsonl.
NEEDED = ("time/step", *(name for name, _ in CURVES))


def _result(run: Run) -> Result:
    return run.latest()[0]


def _shared_ks(arms: Arms) -> list[int]:
    lists = [set(_result(run).ks) for runs in arms.values() for run in runs.values()]
    return sorted(set.intersection(*lists))


def _about(runs: Mapping[str, Run], base: Result | None) -> str:
    run = next(iter(runs.values()))
    result = _result(run)
    return (
        f"Model {Path(run.model).name}, data {run.setting('data.path')}; Γ = "
        f"{run.setting('rollout.prompts_per_batch')}, G = {run.setting('rollout.group_size')}, "
        f"{run.setting('learner.steps')} steps, temperature {run.setting('rollout.temperature')}. "
        f"{result.title}: {len(result.problems)} problems, N = {result.samples} samples each."
    )


def _figures(
    arms: Arms, rows: Sequence[Row], start: list[Estimate], example: Run, baseline: str
) -> dict[str, tuple[str, Figure]]:
    """File name -> (heading, figure)."""
    curves = {row.arm: row.pass_at_k for row in rows}
    if start:
        curves = {"Base": start, **curves}
    figures = {"pass_at_k": ("Pass@K", pass_at_k_figure({_result(example).title: curves}))}
    differences = {row.arm: row.difference for row in rows if row.difference}
    if differences:
        figures["difference"] = (f"Difference to {baseline}", difference_figure(differences, baseline))
    figures["training"] = ("Training", arms_figure({a: list(r.values()) for a, r in arms.items()}, CURVES))
    for arm, runs in arms.items():
        figures[f"allocation_{arm}"] = (f"Allocation dynamics: {arm}", allocation_figure(*runs.values()))
    return figures
