"""The report of a study as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hora_rl.evaluation.report.markdown import markdown_table

COUNTS = ("rollouts", "tokens", "seconds")


def markdown(facts: Mapping[str, Any]) -> str:
    """The tables of a study as text, from the same facts as the page."""
    ks = [f"Pass@{k}" for k in facts["ks"]]
    matched = (
        f"**Not compute-matched:** {'; '.join(facts['problems'])}." if facts["problems"] else facts["matched"]
    )
    missing = [f"Missing cells: {', '.join(facts['missing'])}."] if facts["missing"] else []
    start = [["before training", "", *map(_percent, facts["start"])]] if facts["start"] else []
    rows, names = facts["rows"], list(facts["rows"][0].means)
    parts = [
        f"# {facts['title']}",
        f"{facts['about']} Intervals are 95%, by Student's t: of Pass@K over seeds and problems (with one "
        "seed, over problems alone), of the other figures over seeds.",
        matched,
        *missing,
        *([facts["caveat"]] if facts["caveat"] else []),
        _table(
            ["arm", "seeds", *ks], start + [[r.arm, str(r.seeds), *map(_percent, r.pass_at_k)] for r in rows]
        ),
        f"Difference to {facts['baseline']}, same seeds and problems, in points:",
        _table(["arm", *ks], [[r.arm, *map(_points, r.difference)] for r in rows if r.difference]),
        _table(["arm", *names], [[r.arm, *(_mean(n, r.means[n]) for n in names)] for r in rows]),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(markdown_table(head, rows, numbers=True))


def _percent(e: Any) -> str:
    return f"{100 * e.value:.1f} ({100 * e.low:.1f} to {100 * e.high:.1f})"


def _points(e: Any) -> str:
    return f"{100 * e.value:+.1f} ({100 * e.low:+.1f} to {100 * e.high:+.1f})"


def _mean(name: str, mean: Any) -> str:
    if name in COUNTS:
        return f"{mean.value:,.0f}"
    return (
        f"{100 * mean.value:.1f}%"
        if mean.low != mean.low
        else f"{100 * mean.value:.1f}% ({100 * mean.low:.1f} to {100 * mean.high:.1f})"
    )
