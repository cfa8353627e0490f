"""Templates of `evaluation.study`: the page (one file that needs nothing beside it) and the tables as Markdown."""

MARKDOWN = """# {{ title }}

{{ about }} Intervals are 95%: of Pass@K by bootstrap over seeds and problems, of the other figures by Student's t over seeds.
{% if problems %}
**Not compute-matched:** {{ problems | join("; ") }}.
{% else %}
Every batch of every cell holds its Γ·G rollouts, and all cells the same total (counted from their records).
{% endif %}{% if missing %}
Missing cells: {{ missing | join(", ") }}.
{% endif %}
| arm | seeds |{% for k in ks %} Pass@{{ k }} |{% endfor %}

|---|---:|{% for k in ks %}---:|{% endfor %}
{% macro pct(e) %}{{ "%.1f" | format(100 * e.value) }} ({{ "%.1f" | format(100 * e.low) }} to {{ "%.1f" | format(100 * e.high) }}){% endmacro %}
{%- if start %}
| before training | |{% for e in start %} {{ pct(e) }} |{% endfor %}
{% endif %}
{%- for r in rows %}
| {{ r.arm }} | {{ r.seeds }} |{% for e in r.pass_at_k %} {{ pct(e) }} |{% endfor %}
{% endfor %}
Difference to {{ baseline }}, same seeds and problems, in points:

| arm |{% for k in ks %} Pass@{{ k }} |{% endfor %}

|---|{% for k in ks %}---:|{% endfor %}
{% for r in rows if r.difference %}
| {{ r.arm }} |{% for e in r.difference %} {{ "%+.1f" | format(100 * e.value) }} ({{ "%+.1f" | format(100 * e.low) }} to {{ "%+.1f" | format(100 * e.high) }}) |{% endfor %}
{% endfor %}
| arm |{% for name in rows[0].means %} {{ name }} |{% endfor %}

|---|{% for name in rows[0].means %}---:|{% endfor %}
{% macro mean(name, m) %}{% if name in ("rollouts", "tokens", "seconds") %}{{ "{:,.0f}".format(m.value) }}{% else %}{{ "%.1f%%" | format(100 * m.value) }}{% if m.low == m.low %} ({{ "%.1f" | format(100 * m.low) }} to {{ "%.1f" | format(100 * m.high) }}){% endif %}{% endif %}{% endmacro %}
{%- for r in rows %}
| {{ r.arm }} |{% for name, m in r.means.items() %} {{ mean(name, m) }} |{% endfor %}
{% endfor %}
"""

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
{% macro cell(e, form) %}{{ form | format(100 * e.value) }}<br>
<small>{{ form | format(100 * e.low) }} to {{ form | format(100 * e.high) }}</small>{% endmacro %}
<h2>Pass@K (%)</h2>
<p>Held-out problems, accuracy alone, unbiased estimate; below each value its 95% interval, bootstrap over seeds and
problems.</p>
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
<p>Means over seeds with 95% intervals (Student's t). Seconds are those of the learner's steps, waiting included.</p>
<div class="wide"><table>
<thead><tr><th>Arm</th>{% for name in rows[0].means %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for r in rows %}<tr><td>{{ r.arm }}</td>
{% for name, m in r.means.items() %}<td>{% if name in ("rollouts", "tokens", "seconds") %}{{ "{:,.0f}".format(m.value) }}
{% else %}{{ cell(m, "%.1f") }}{% endif %}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% for heading, image in figures.items() %}
<h2>{{ heading }}</h2>
<img alt="{{ heading }}" src="data:image/png;base64,{{ image }}">
{% endfor %}
</html>
"""
