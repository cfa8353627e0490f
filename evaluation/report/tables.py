"""Table 1 of the paper and its curves of Pass@K for any runs, and the files of one evaluation: its JSON,
its table (CSV and Markdown) and its curve (PNG and SVG)."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path

from hora_rl.common.files import replace_text
from hora_rl.common.load import differing
from hora_rl.evaluation.benchmarks import BENCHMARKS
from hora_rl.evaluation.pass_at_k import Estimate, estimates_of_runs
from hora_rl.evaluation.report.figures import pass_at_k_figure, save
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import Run, RunFolderError, by_model, check_same_problems

APART = (
    *("rollout.prompts_per_batch", "rollout.group_size", "rollout.max_staleness", "rollout.temperature"),
    *("rollout.max_response_tokens", "learner.optimizer.", "learner.lora", "reward.weights"),
)
"""Settings that change what is learned, and that a method's name leaves out."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Pass@K of one method on one benchmark in percent, the mean of `runs` runs. `rank` among the model's
    methods: 1 best, 2 second best, else 0."""

    value: float
    low: float
    high: float
    runs: int
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Table 1 of the paper: `rows` are (model, method, one cell or None per column)."""

    columns: list[tuple[str, int]]
    rows: list[tuple[str, str, list[Cell | None]]]

    @property
    def heads(self) -> list[str]:
        return [f"{title}\nPass@{k}" for title, k in self.columns]


def table_1(runs: Sequence[Run]) -> Table | None:
    """Pass@1 and Pass@K at each benchmark's largest K, per model and method; None without results."""
    groups = _grouped(runs)
    benchmarks = _benchmarks(groups)
    columns = [(title, k) for title, top in benchmarks.items() for k in dict.fromkeys((1, top))]
    rows = [
        (model, method, [_cell(results, title, k) for title, k in columns])
        for (model, method), results in groups.items()
    ]
    return Table(columns, _ranked(rows)) if columns else None


def curves(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, list[Estimate]]]]:
    """Model -> benchmark title -> method -> curve."""
    groups = _grouped(runs)
    panels: dict[str, dict[str, dict[str, list[Estimate]]]] = {}
    for title in _benchmarks(groups):
        for (model, method), results in groups.items():
            if curve := _curve(results, title):
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
        labelled = [("Base", r) for run in mine for r in run.base()]
        labelled += [(name, r) for name, run in zip(_names(mine), mine, strict=True) for r in run.latest()]
        labelled += [(r.model, r) for run in mine for r in run.unlabelled()]
        for title in dict.fromkeys(r.title for _, r in labelled):
            check_same_problems([r for _, r in labelled if r.title == title])
        steps: dict[tuple[str, str], set[int]] = defaultdict(set)
        for method, r in labelled:
            steps[method, r.title].add(r.step)
        for method, r in labelled:
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
        apart = [d for d in differing([runs[i].config for i in alike]) if d[0].startswith(APART)]
        for key, values in apart:
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


def _curve(results: Sequence[Result], title: str) -> list[Estimate]:
    """Mean over runs per problem, then over problems, at every K that all runs have. Raises RunFolderError
    for runs with different sampling."""
    mine = [r for r in results if r.title == title]
    if len({r.sampling for r in mine}) > 1:
        raise RunFolderError(
            f"{title}: runs of one method were evaluated at different temperatures or truncations (top_p, "
            "top_k, min_p); report them apart"
        )
    ks = sorted(set.intersection(*(set(r.ks) for r in mine))) if mine else []
    return estimates_of_runs([(r.correct, r.samples) for r in mine], ks) if ks else []


def _cell(results: Sequence[Result], title: str, k: int) -> Cell | None:
    runs = sum(r.title == title for r in results)
    for e in _curve(results, title):
        if e.k == k:
            return Cell(100 * e.value, 100 * e.low, 100 * e.high, runs)
    return None


def _ranked(rows: Sequence[tuple[str, str, list[Cell | None]]]) -> list[tuple[str, str, list[Cell | None]]]:
    """Mark best and second best within each model, after rounding as shown."""
    ranked = []
    for model, method, cells in rows:
        rivals = [other for m, _, other in rows if m == model]
        marked: list[Cell | None] = []
        for cell, column in zip(cells, zip(*rivals, strict=True), strict=True):
            best = sorted({round(c.value, 1) for c in column if c}, reverse=True)[:2]
            rank = best.index(value) + 1 if cell and (value := round(cell.value, 1)) in best else 0
            marked.append(replace(cell, rank=rank if len(rivals) > 1 else 0) if cell else None)
        ranked.append((model, method, marked))
    return ranked


def latex(table: Table) -> str:
    """Table 1 as a LaTeX tabular with booktabs: best bold, second best underlined."""

    def shown(cell: Cell | None) -> str:
        forms = ("{:.1f}", "\\textbf{{{:.1f}}}", "\\underline{{{:.1f}}}")
        return "--" if cell is None else forms[cell.rank].format(cell.value)

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
        lines += [_line(model, method, *map(shown, cells)) for _, method, cells in rows]
    text = "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"
    return text.replace("%", "\\%").replace("_", "\\_")


def _line(*cells: str) -> str:
    return " & ".join(cells) + " \\\\"


def write_result(folder: Path, result: Result) -> Path:
    """Write `<benchmark>-step<step>` as .json, .csv, .md, .png and .svg ; returns the JSON path."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{result.benchmark}-step{result.step}"
    curve = result.estimates()
    (folder / f"{name}.csv").write_text(csv_table([result]), encoding="utf-8")
    (folder / f"{name}.md").write_text(result_page(result), encoding="utf-8")
    save(pass_at_k_figure({result.title: {result.model: curve}}), folder, name)
    summary = {**asdict(result), "pass_at_k": [asdict(e) for e in curve]}
    # Written last: its presence means that the evaluation and all its files are complete.
    path = folder / f"{name}.json"
    replace_text(path, json.dumps(summary, indent=1) + "\n")
    return path


def csv_table(results: Sequence[Result]) -> str:
    """One row per result and K; shares between 0 and 1."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["benchmark", "model", "step", "problems", "samples", "k", "pass_at_k", "low", "high"])
    for r in results:
        for e in r.estimates():
            shares = [f"{x:.6f}" for x in (e.value, e.low, e.high)]
            writer.writerow([r.benchmark, r.model, r.step, len(r.problems), r.samples, e.k, *shares])
    return table.getvalue()


def result_page(result: Result) -> str:
    mean, share = result.tokens / result.completions, result.format_share
    rows = [
        [str(e.k), f"{100 * e.value:.1f}", f"{100 * e.low:.1f} to {100 * e.high:.1f}"]
        for e in result.estimates()
    ]
    formatted = "" if share is None else f"{share:.1%} in the format, "
    return "\n".join(
        [
            f"## {result.title}: {result.model}, step {result.step}",
            "",
            f"{len(result.problems)} problems, N = {result.samples} samples each at {result.sampling}; "
            f"{formatted}{result.cut / result.completions:.1%} cut at the "
            f"response limit, {mean:.0f} tokens on average. Intervals: 95%, bootstrap over problems."
            + (f" Weights sampled: {result.sampled}." if result.sampled else ""),
            "",
            *markdown_table(["K", "Pass@K (%)", "95% interval"], rows),
            "",
        ]
    )


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """The lines of a table; `numbers` right-aligns all columns except the first."""
    rule = "|---" + ("|---:" if numbers else "|---") * (len(head) - 1) + "|"
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]
