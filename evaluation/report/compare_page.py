"""The page of `hora compare`, a Jinja template: one file that needs nothing beside it."""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>HORA: {{ found.runs | join(", ") }}</title>
<style>{{ css | safe }}</style>
<h1>{{ found.runs | join(", ") }}</h1>
<div class="wide"><table>
<thead><tr>{% for name in head %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in found.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table></div>
{% for metric, figure in figures.items() %}
<h2>{{ metric }} over {{ over }}</h2>
<figure role="img" aria-label="{{ metric }} of every run over {{ over }}">{{ figure | safe }}</figure>
{% endfor %}
<h2>Where the configurations differ</h2>
{% if found.settings %}
<div class="wide"><table>
<thead><tr><th>setting</th>{% for name in found.runs %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for key, values in found.settings %}<tr><td>{{ key }}</td>{% for value in values %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% else %}<p>Nowhere, but for names and places.</p>{% endif %}
{% if found.results %}
<h2>Evaluations</h2>
<div class="wide"><table>
<thead><tr><th>run</th><th>benchmark</th><th>step</th><th>Pass@K (%)</th></tr></thead>
<tbody>{% for row in found.results %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table></div>
{% endif %}
</html>
"""
