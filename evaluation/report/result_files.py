"""The files of one evaluation: its JSON, its table (CSV and Markdown) and its curve (PNG and SVG)."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hora_rl.common.files import replace_text
from hora_rl.evaluation.pass_at_k import Estimate
from hora_rl.evaluation.report.figures import pass_at_k_figure, save
from hora_rl.evaluation.results import Result


def write_result(folder: Path, result: Result) -> Path:
    """Write `<benchmark>-step<step>` as .json, .csv, .md, .png and .svg ; returns the JSON path."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{result.benchmark}-step{result.step}"
    found = result.estimates()
    (folder / f"{name}.csv").write_text(csv_table([result]), encoding="utf-8")
    (folder / f"{name}.md").write_text(markdown_table(result, found), encoding="utf-8")
    save(pass_at_k_figure({result.title: {result.model: found}}), folder, name)
    summary = {**asdict(result), "pass_at_k": [asdict(e) for e in found]}
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


def _in_format(result: Result) -> str:
    return "" if result.format_share is None else f"{result.format_share:.1%} in the format, "


def markdown_table(result: Result, found: Sequence[Estimate]) -> str:
    mean = result.tokens / result.completions
    return "\n".join(
        [
            f"## {result.title}: {result.model}, step {result.step}",
            "",
            f"{len(result.problems)} problems, N = {result.samples} samples each at {result.sampling}; "
            f"{_in_format(result)}{result.cut / result.completions:.1%} cut at the "
            f"response limit, {mean:.0f} tokens on average. Intervals: 95%, bootstrap over problems."
            + (f" Weights sampled: {result.sampled}." if result.sampled else ""),
            "",
            "| K | Pass@K (%) | 95% interval |",
            "|---:|---:|:---:|",
            *(f"| {e.k} | {100 * e.value:.1f} | {100 * e.low:.1f} to {100 * e.high:.1f} |" for e in found),
            "",
        ]
    )
