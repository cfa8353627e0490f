"""The page of `evaluation.report`, a Jinja template: one file that needs nothing beside it."""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>HORA report</title>
<style>{{ css | safe }}</style>
<h1>HORA report</h1>
<p>Written on {{ date }}.</p>
<h2>Pass@1 and Pass@K (%)</h2>
{% if table %}
<p>Accuracy alone, unbiased estimate; below each value its 95% interval (bootstrap over problems). Rows of several
runs are their mean. The best value of a column within each model is marked.</p>
<div class="wide"><table>
<thead><tr><th>Model</th><th>Method</th>{% for title, k in table.columns %}<th>{{ title }}<br>Pass@{{ k }}</th>{% endfor %}</tr></thead>
<tbody>
{% for model, method, cells in table.rows %}
<tr><td>{{ model }}</td><td>{{ method }}</td>
{% for c in cells %}<td{% if c and c.best %} class="best"{% endif %}>{% if c %}{{ "%.1f"|format(c.value) }}<br>
<small>{{ "%.1f"|format(c.low) }} to {{ "%.1f"|format(c.high) }}{% if c.runs > 1 %}, {{ c.runs }} runs{% endif %}</small>
{% else %}–{% endif %}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% else %}
<p>These runs have no evaluations (evaluation/*-step*.json). <code>hora eval MODEL --out RUN/evaluation</code> makes them.</p>
{% endif %}
<h2>Runs</h2>
<p>Runs are compute-matched when their rollouts per batch are equal.</p>
<div class="wide"><table>
<thead><tr><th>Run</th><th>Method</th><th>Started</th><th>Steps</th><th>Groups</th><th>Rollouts</th><th>Rollouts<br>per batch</th>
<th>Tokens</th><th>Groups<br>with a hit</th><th>Groups without<br>signal</th><th>Phase B<br>to c=0</th><th>Phase B<br>to c=G0</th></tr></thead>
<tbody>
{% macro share(x) %}{% if x is none %}–{% else %}{{ "%.1f"|format(100 * x) }}%{% endif %}{% endmacro %}
{% for s in summaries %}
<tr><td>{{ s.name }}</td><td>{{ s.method }}</td><td>{{ s.started }}</td><td>{{ s.steps }}</td><td>{{ "{:,}".format(s.groups) }}</td>
<td>{{ "{:,}".format(s.rollouts) }}</td><td>{{ s.rollouts_per_batch }}</td><td>{{ "{:,}".format(s.tokens) }}</td>
<td>{{ share(s.share_hit) }}</td><td>{{ share(s.share_zero_signal) }}</td><td>{{ share(s.phase_b_to_none) }}</td>
<td>{{ share(s.phase_b_to_all) }}</td></tr>
{% endfor %}
</tbody></table></div>
{% for name, found in predicted.items() %}
<h2>Predicted and measured: {{ name }}</h2>
<p>{{ found.says }} Measured is the median over steps without the first.</p>
{% if found.rows %}
<div class="wide"><table>
<thead><tr><th>Of a step</th><th>Unit</th><th>Predicted</th><th>Measured</th><th>Measured over<br>predicted</th><th>Assumed, or why not</th></tr></thead>
<tbody>
{% for r in found.rows %}
<tr><td>{{ r.title }}</td><td>{{ r.unit }}</td><td>{{ shown(r.predicted) }}</td><td>{{ shown(r.measured) }}</td>
<td>{{ shown(r.ratio) }}</td><td>{{ r.why }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% endfor %}
{% for name, rows in hits.items() %}
<h2>Prompts with a hit: {{ name }}</h2>
<p>Share of prompts with at least one success, by the successes c of Phase A: expected by the posterior when Phase B was divided,
and realised. Under the likelihood objective this is the share of the gradient that a batch realises.</p>
<div class="wide"><table>
<thead><tr><th>c</th><th>Groups</th><th>Mean G<sub>i</sub></th><th>With a hit,<br>expected</th><th>With a hit,<br>realised</th>
<th>Hit in Phase B,<br>expected</th><th>Hit in Phase B,<br>realised</th></tr></thead>
<tbody>
{% for r in rows %}
<tr><td>{{ r.title }}</td><td>{{ "{:,}".format(r.groups) }}</td><td>{{ "%.1f"|format(r.size) }}</td><td>{{ share(r.expected) }}</td>
<td>{{ share(r.realised) }}</td><td>{{ share(r.phase_b_expected) }}</td><td>{{ share(r.phase_b_realised) }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
{% for name, rows in sources.items() %}
<h2>Data sources: {{ name }}</h2>
<p>Totals of the run. Reward and success are means over prompts, over the first and the last tenth of the steps.</p>
<div class="wide"><table>
<thead><tr><th>Source</th><th>Groups</th><th>Rollouts</th><th>Tokens</th><th>Reward</th><th>Success</th></tr></thead>
<tbody>
{% for r in rows %}
<tr><td>{{ r.source }}</td><td>{{ "{:,}".format(r.groups) }}</td><td>{{ "{:,}".format(r.rollouts) }}</td><td>{{ "{:,}".format(r.tokens) }}</td>
<td>{% if r.reward %}{{ "%.3f"|format(r.reward[0]) }} to {{ "%.3f"|format(r.reward[1]) }}{% else %}–{% endif %}</td>
<td>{% if r.success %}{{ share(r.success[0]) }} to {{ share(r.success[1]) }}{% else %}–{% endif %}</td></tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
{% for name, (ks, rows) in evaluated.items() %}
<h2>Evaluations during training: {{ name }}</h2>
<p>Pass@K (%) by the step of the evaluation. Weights change under an evaluation during training: the second column says which
versions were sampled.</p>
<div class="wide"><table>
<thead><tr><th>Benchmark</th><th>Weights</th><th>Step</th>{% for k in ks %}<th>Pass@{{ k }}</th>{% endfor %}</tr></thead>
<tbody>
{% for r in rows %}
<tr><td>{{ r.benchmark }}</td><td>{{ r.weights }}</td><td>{{ r.step }}</td>{% for k in ks %}<td>{% for e in r.estimates if e.k == k %}{{ "%.1f"|format(100 * e.value) }}<br>
<small>{{ "%.1f"|format(100 * e.low) }} to {{ "%.1f"|format(100 * e.high) }}</small>{% else %}–{% endfor %}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
{% for title, image in figures.items() %}
<h2>{{ title }}</h2>
<figure role="img" aria-label="{{ title }}">{{ image | safe }}</figure>
{% endfor %}
<h2>Configurations</h2>
{% for name, run in runs.items() %}
<details><summary>{{ name }}{% if run.weights %}, initial weights {{ run.weights }}{% endif %}</summary>
<pre>{{ configuration(run) }}</pre></details>
{% endfor %}
</html>
"""
