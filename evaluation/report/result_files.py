"""The files of one evaluation: its JSON, its table (CSV and Markdown) and its curve (PNG and SVG)."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from hora_rl.common.files import replace_text
from hora_rl.evaluation.report.figures import pass_at_k_figure, save
from hora_rl.evaluation.results import Result


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
    """The result as Markdown."""
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
