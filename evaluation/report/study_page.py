"""The report of a study as text: `markdown`, and `PAGE`, a Jinja template of one file that needs nothing
beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COUNTS = ("rollouts", "tokens", "seconds")


def markdown(facts: Mapping[str, Any]) -> str:
    """The tables of a study as text, from the same facts as the page."""
    ks = [f"Pass@{k}" for k in facts["ks"]]
    matched = (
        f"**Not compute-matched:** {'; '.join(facts['problems'])}."
        if facts["problems"]
        else "Every batch of every cell holds its Γ·G rollouts, and all cells the same total (counted from their records)."
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
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


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


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
 body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; color: #1a1a1a }
 .wide { overflow-x: auto }
 table { border-collapse: collapse; font-variant-numeric: tabular-nums }
 th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap }
 th:first-child, td:first-child { text-align: left }
 thead tr { border-bottom: 2px solid #444 }
 tbody tr { border-bottom: 1px solid #ddd }
 .clear { font-weight: 700 }
 .bad { background: #fde8e8; padding: .5rem 1rem }
 small { color: #555; font-weight: 400 }
 img { max-width: 100%; height: auto }
</style>
<h1>{{ title }}</h1>
<p>{{ about }}</p>
{% if problems %}<p class="bad">Not compute-matched: {{ problems | join("; ") }}.</p>
{% else %}<p>Every batch of every cell holds its Γ·G rollouts, and all cells the same total (counted from their
records).</p>{% endif %}
{% if missing %}<p class="bad">Missing cells: {{ missing | join(", ") }}.</p>{% endif %}
{% if caveat %}<p>{{ caveat }}</p>{% endif %}
{% macro cell(e, form) %}{{ form | format(100 * e.value) }}<br>
<small>{{ form | format(100 * e.low) }} to {{ form | format(100 * e.high) }}</small>{% endmacro %}
<h2>Pass@K (%)</h2>
<p>Held-out problems, accuracy alone, unbiased estimate; below each value its 95% interval over seeds and problems
(Student's t; with one seed, over problems alone).</p>
<div class="wide"><table>
<thead><tr><th>Arm</th><th>Seeds</th>{% for k in ks %}<th>Pass@{{ k }}</th>{% endfor %}</tr></thead>
<tbody>
{% if start %}<tr><td>before training</td><td></td>{% for e in start %}<td>{{ cell(e, "%.1f") }}</td>{% endfor %}</tr>{% endif %}
{% for r in rows %}<tr><td>{{ r.arm }}</td><td>{{ r.seeds }}</td>
{% for e in r.pass_at_k %}<td>{{ cell(e, "%.1f") }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<h2>Difference to {{ baseline }} (points)</h2>
<p>On the same seeds and problems. Bold where the interval leaves out 0.</p>
<div class="wide"><table>
<thead><tr><th>Arm</th>{% for k in ks %}<th>Pass@{{ k }}</th>{% endfor %}</tr></thead>
<tbody>
{% for r in rows if r.difference %}<tr><td>{{ r.arm }}</td>
{% for e in r.difference %}<td{% if e.low > 0 or e.high < 0 %} class="clear"{% endif %}>{{ cell(e, "%+.1f") }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<h2>Training</h2>
<p>Means over seeds with 95% intervals (Student's t), shares in percent. Seconds are those of the learner's steps, waiting included.</p>
<div class="wide"><table>
<thead><tr><th>Arm</th>{% for name in rows[0].means %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for r in rows %}<tr><td>{{ r.arm }}</td>
{% for name, m in r.means.items() %}<td>{% if name in ("rollouts", "tokens", "seconds") %}{{ "{:,.0f}".format(m.value) }}
{% elif m.low != m.low %}{{ "%.1f" | format(100 * m.value) }}{% else %}{{ cell(m, "%.1f") }}{% endif %}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% for heading, image in figures.items() %}
<h2>{{ heading }}</h2>
<img alt="{{ heading }}" src="data:image/png;base64,{{ image }}">
{% endfor %}
</html>
"""
