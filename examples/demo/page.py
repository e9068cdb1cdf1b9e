"""Write the demo's page: one HTML file with everything inside, the picture included."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import jinja2

from demo.table import table_rows, verdicts
from demo.train import Column
from dovetail.inspect.page import source_hash

_STYLE = """
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #22282d; }
  h1 { margin-bottom: 0.2rem; }
  img { width: 100%; height: auto; }
  table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
  th, td { padding: 0.35rem 0.9rem; border-bottom: 1px solid #d8dde1; text-align: right; }
  th:first-child, td:first-child { text-align: left; font-weight: normal; }
  thead th { border-bottom: 2px solid #5b6770; }
  .facts td { text-align: left; }
  .facts td:first-child { color: #5b6770; }
"""
_TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>dovetail demo</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src {{ style_hash }}">
<style>{{ style | safe }}</style>
</head>
<body>
<h1>dovetail demo</h1>
<p>A small GPT, trained on the source of Python's own standard library: the same data, the same seed and the same
initial weights in every column, and only the way of running it differs.</p>
<table>
  <thead><tr><th></th>{% for column in columns %}<th>{{ column.name }}</th>{% endfor %}</tr></thead>
  <tbody>
  {%- for row in rows %}
  <tr><td>{{ row.label }}</td>{% for cell in row.cells %}<td>{{ cell }}</td>{% endfor %}</tr>
  {%- endfor %}
  </tbody>
</table>
{%- if report %}
<p><a href="{{ report }}">The report of the program that ran</a>: who holds memory at the peak, what was decided, and
why.</p>
{%- endif %}
<ul>{% for sentence in sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>
<img alt="Loss curves, memory of one step over time, and peak memory" src="data:image/png;base64,{{ picture }}">
{%- for title, facts in sections.items() %}
<h2>{{ title }}</h2>
<table class="facts">
  {%- for label, value in facts.items() %}
  <tr><td>{{ label }}</td><td>{{ value }}</td></tr>
  {%- endfor %}
</table>
{%- endfor %}
</body>
</html>
"""


def render_page(
    columns: Sequence[Column], picture_png: bytes, sections: Mapping[str, Mapping[str, str]], report: str = ""
) -> str:
    """Return the page as HTML text.

    sections: titled tables of facts that follow the picture. report: the name of the report in the same folder, if any.
    """
    environment = jinja2.Environment(autoescape=True)
    page: str = environment.from_string(_TEMPLATE).render(
        columns=columns,
        rows=table_rows(columns),
        sentences=verdicts(columns),
        picture=base64.b64encode(picture_png).decode("ascii"),
        sections=sections,
        report=report,
        style=_STYLE,
        style_hash=source_hash(_STYLE),
    )
    return page
