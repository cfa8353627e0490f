"""The report of a study whose cells have exact curves, by the rules that its design wrote down."""

from __future__ import annotations

from pathlib import Path

from research.report.curves import Rules
from research.report.curves_report import write_curves_report
from research.study.cells import Study, folders
from research.study.exact_curves import CURVES


def write_exact_report(study: Study, out: Path) -> Path:
    """Report on the cells in `out` that have curves; returns OUT/report/report.md."""
    curves = {arm: {s: f / CURVES for s, f in of.items()} for arm, of in folders(study, out).items()}
    return write_curves_report(out / "report", study.title or study.name, curves, rules_of(study))


def rules_of(study: Study) -> Rules:
    """The design's rules for the report; without comparisons, every arm against the baseline."""
    comparisons = study.design.comparisons or tuple(
        (a, study.compared_with) for a in study.arms if a != study.compared_with
    )
    return Rules(comparisons, **study.design.model_dump(exclude={"comparisons", "every", "first"}))
