"""Table 1 of the paper for any runs, the cost of each run, and its statistics per data source."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from hora_rl.common.load import differing
from hora_rl.evaluation.benchmarks import BENCHMARKS
from hora_rl.evaluation.pass_at_k import Estimate, pass_at_k, resampled_means
from hora_rl.evaluation.phase_b import PhaseB
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import Run, RunFolderError, by_model, check_same_problems

TOLD = (
    *("rollout.prompts_per_batch", "rollout.group_size", "rollout.max_staleness", "rollout.temperature"),
    *("rollout.max_response_tokens", "learner.optimizer.", "learner.lora", "reward.weights"),
)
"""Settings that change what is learned, and that a method's name leaves out."""
EDGE = 10
"""The first and last 1/EDGE of the steps are the beginning and the end of training."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Pass@K of one method on one benchmark in percent, the mean of `runs` runs. `place` among the model's
    methods: 1 best, 2 second best, else 0."""

    value: float
    low: float
    high: float
    runs: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Table 1 of the paper: `rows` are (model, method, one cell or None per column)."""

    columns: list[tuple[str, int]]
    rows: list[tuple[str, str, list[Cell | None]]]

    @property
    def heads(self) -> list[str]:
        return [f"{title}\nPass@{k}" for title, k in self.columns]


@dataclass(frozen=True, slots=True)
class Summary:
    """Cost and statistics of a run. Shares are in 0..1; None if not recorded.

    `rollouts_per_batch` covers complete batches, `phase_b_…` groups outside a uniform warm-up.
    """

    name: str
    method: str
    started: str
    steps: int
    groups: int
    rollouts: int
    rollouts_per_batch: str
    tokens: int
    share_hit: float | None
    share_zero_signal: float | None
    share_mixed_phases: float | None
    phase_b_to_none: float | None
    phase_b_to_all: float | None


def table_1(runs: Sequence[Run]) -> Table | None:
    """Pass@1 and Pass@K at each benchmark's largest K, per model and method; None without results."""
    groups = _grouped(runs)
    benchmarks = _benchmarks(groups)
    columns = [(title, k) for title, top in benchmarks.items() for k in dict.fromkeys((1, top))]
    rows = [
        (model, method, [_cell(results, title, k) for title, k in columns])
        for (model, method), results in groups.items()
    ]
    return Table(columns, _placed(rows)) if columns else None


def summarise(name: str, run: Run) -> Summary:
    size, hits = run.groups["size"], run.groups["hits"]
    extra, counts, trials = (
        run.groups[field][run.outside_warm_up] for field in ("extra", "successes", "trials")
    )
    none, *_, all_right = PhaseB.count(counts, extra, int(trials.max(initial=1))).shares()
    return Summary(
        name=name,
        method=run.method,
        started=run.started or "–",
        steps=len(next(iter(run.steps.values()), np.unique(run.groups["step"]))),
        groups=len(size),
        rollouts=int(size.sum()),
        rollouts_per_batch=_per_batch(run),
        tokens=int(run.groups["tokens"].sum()),
        share_hit=float((hits > 0).mean()) if len(hits) else None,
        share_zero_signal=_mean_of(run, "groups/zero_signal"),
        share_mixed_phases=_mean_of(run, "groups/mixed_phases"),
        phase_b_to_none=none.phase_b,
        phase_b_to_all=all_right.phase_b,
    )


def _mean_of(run: Run, metric: str) -> float | None:
    """Mean over the steps that have the metric."""
    values = run.steps.get(metric, np.array([]))
    return float(np.nanmean(values)) if len(values) else None


def _per_batch(run: Run) -> str:
    """Rollouts of complete batches, `1920` or `1918 to 1920`.

    Per batch and not per step: Γ·G is allocated per batch, and a stale step mixes batches.
    """
    batches, place, groups = np.unique(run.groups["batch"], return_inverse=True, return_counts=True)
    sums = np.bincount(place, weights=run.groups["size"], minlength=len(batches)).astype(int)
    whole = sums[groups >= int(run.setting("rollout.prompts_per_batch", 0))]
    if not whole.size:
        return "–"
    return str(whole.min()) if whole.min() == whole.max() else f"{whole.min()} to {whole.max()}"


@dataclass(frozen=True, slots=True)
class BySource:
    """One source: total groups, rollouts and tokens; mean reward and success over the first and last tenth of
    steps, None if not recorded."""

    source: str
    groups: int
    rollouts: int
    tokens: int
    reward: tuple[float, float] | None
    success: tuple[float, float] | None


def sources_of(run: Run) -> list[str]:
    """The data sources of a run with several."""
    keys = [key.split("/") for key in run.steps if key.startswith("source/")]
    return list(dict.fromkeys(parts[1] for parts in keys))


def by_source(run: Run) -> list[BySource]:
    """One row per source; none for a run with one data set."""
    rows = []
    for source in sources_of(run):
        columns = {
            what: run.steps.get(f"source/{source}/{what}", np.zeros(0))
            for what in ("groups", "rollouts", "tokens", "reward", "success")
        }
        groups, rollouts, tokens = (int(np.nansum(columns[k])) for k in ("groups", "rollouts", "tokens"))
        reward, success = _ends(columns["reward"]), _ends(columns["success"])
        rows.append(BySource(source, groups, rollouts, tokens, reward, success))
    return rows


def _ends(values: NDArray[np.float64]) -> tuple[float, float] | None:
    values = values[~np.isnan(values)]
    n = max(1, len(values) // EDGE)
    return (float(values[:n].mean()), float(values[-n:].mean())) if len(values) else None


def curves(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, list[Estimate]]]]:
    """Model -> benchmark title -> method -> curve."""
    groups = _grouped(runs)
    panels: dict[str, dict[str, dict[str, list[Estimate]]]] = {}
    for title in _benchmarks(groups):
        for (model, method), results in groups.items():
            curve = [e for k in _ks(results, title) if (e := _mean(results, title, k)) is not None]
            if curve:
                panels.setdefault(model, {}).setdefault(title, {})[method] = curve
    return panels


def _grouped(runs: Sequence[Run]) -> dict[tuple[str, str], list[Result]]:
    """Results by (model, method), each model's "Base" first, with duplicates of Base removed.

    Results on weights with unknown steps get a row of their model's name, those of one method after different
    steps a row per step. Raises RunFolderError if results of one model on one benchmark have different
    problems.
    """
    groups: dict[tuple[str, str], list[Result]] = {}
    for model, mine in by_model(runs).items():
        mine = sorted(mine, key=lambda run: "HORA" in run.method)
        found = [("Base", r) for run in mine for r in run.base()]
        found += [(name, r) for name, run in zip(_names(mine), mine, strict=True) for r in run.latest()]
        found += [(r.model, r) for run in mine for r in run.unlabelled()]
        for title in dict.fromkeys(r.title for _, r in found):
            check_same_problems([r for _, r in found if r.title == title])
        steps: dict[tuple[str, str], set[int]] = defaultdict(set)
        for method, r in found:
            steps[method, r.title].add(r.step)
        for method, r in found:
            apart = f", step {r.step}" if method != "Base" and len(steps[method, r.title]) > 1 else ""
            row = groups.setdefault((model, method + apart), [])
            if method != "Base" or r not in row:
                row.append(r)
    return groups


def _names(runs: Sequence[Run]) -> list[str]:
    """Each run's method, with the settings in which runs of that method differ: those are no seeds of one
    another."""
    names = [run.method for run in runs]
    for method in set(names):
        alike = [i for i, run in enumerate(runs) if run.method == method]
        told = [d for d in differing([runs[i].config for i in alike]) if d[0].startswith(TOLD)]
        for key, values in told:
            for i, value in zip(alike, values, strict=True):
                names[i] += f", {key.rpartition('.')[2]}={value}"
    return names


def _benchmarks(groups: Mapping[tuple[str, str], Sequence[Result]]) -> dict[str, int]:
    """Title -> largest K in all of its results; the paper's benchmarks first, in its order."""
    order = [b.title for b in BENCHMARKS.values()]
    results = sorted(
        (r for rs in groups.values() for r in rs),
        key=lambda r: (order.index(r.title) if r.title in order else len(order), r.title),
    )
    shared: dict[str, set[int]] = {}
    for r in results:
        shared[r.title] = shared.get(r.title, set(r.ks)) & set(r.ks)
    return {title: max(ks) for title, ks in shared.items() if ks}


def _ks(results: Sequence[Result], title: str) -> list[int]:
    lists = [set(r.ks) for r in results if r.title == title]
    return sorted(set.intersection(*lists)) if lists else []


def _mean(results: Sequence[Result], title: str, k: int) -> Estimate | None:
    """Mean over runs per problem, then over problems; the interval is over problems.

    Raises RunFolderError for runs with different sampling.
    """
    mine = [r for r in results if r.title == title and k <= r.samples]
    if not mine:
        return None
    if len({r.sampling for r in mine}) > 1:
        raise RunFolderError(
            f"{title}: runs of one method were evaluated at different temperatures or truncations (top_p, "
            "top_k, min_p); report them apart"
        )
    per_problem = np.mean([pass_at_k(r.correct, r.samples, k) for r in mine], axis=0)
    low, high = np.quantile(resampled_means(per_problem[:, None], seed=0), [0.025, 0.975])
    return Estimate(k, float(per_problem.mean()), float(low), float(high))


def _cell(results: Sequence[Result], title: str, k: int) -> Cell | None:
    found = _mean(results, title, k)
    if found is None:
        return None
    runs = sum(r.title == title for r in results)
    return Cell(100 * found.value, 100 * found.low, 100 * found.high, runs)


def _placed(
    rows: Sequence[tuple[str, str, list[Cell | None]]],
) -> list[tuple[str, str, list[Cell | None]]]:
    """Mark best and second best within each model, after rounding as shown."""
    placed = []
    for model, method, cells in rows:
        rivals = [other for m, _, other in rows if m == model]
        tops = [
            sorted({round(c.value, 1) for c in column if c}, reverse=True)[:2]
            for column in zip(*rivals, strict=True)
        ]
        shown = [
            c and replace(c, place=_place(round(c.value, 1), top) if len(rivals) > 1 else 0)
            for c, top in zip(cells, tops, strict=True)
        ]
        placed.append((model, method, shown))
    return placed


def _place(value: float, tops: Sequence[float]) -> int:
    return tops.index(value) + 1 if value in tops else 0


def latex(table: Table) -> str:
    """Table 1 as a LaTeX tabular with booktabs: best bold, second best underlined."""
    titles = [title for title, _ in table.columns]
    spans = [f"\\multicolumn{{{titles.count(t)}}}{{c}}{{{t}}}" for t in dict.fromkeys(titles)]
    lines = [
        f"\\begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
        "\\toprule",
        _line("", "", *spans),
        _line("Model", "Method", *(f"Pass@{k}" for _, k in table.columns)),
    ]
    for model, rows in groupby(table.rows, key=lambda row: row[0]):
        lines.append("\\midrule")
        lines += [_line(model, method, *map(_latex_cell, cells)) for _, method, cells in rows]
    text = "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"
    return text.replace("%", "\\%").replace("_", "\\_")


def _line(*cells: str) -> str:
    return " & ".join(cells) + " \\\\"


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "--"
    return ("{}", "\\textbf{{{}}}", "\\underline{{{}}}")[cell.place].format(f"{cell.value:.1f}")
