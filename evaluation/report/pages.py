"""The pages of reports: `templates/`, each one file that needs nothing beside it, light or dark as the
reader's system is."""

from __future__ import annotations

import io
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from matplotlib import rc_context
from matplotlib.figure import Figure

TEMPLATES = Path(__file__).with_name("templates")
INK = "#000000"
"""matplotlib's black, which text, axes and the seventh line have: it becomes the page's text colour."""


def write_page(path: Path, template: str, **facts: object) -> Path:
    """Write page `template` with these facts to `path`."""
    pages = Environment(autoescape=True, loader=FileSystemLoader(TEMPLATES), trim_blocks=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pages.get_template(f"{template}.html").render(facts), encoding="utf-8")
    return path


def inline_svg(figure: Figure) -> str:
    """The figure as an `<svg>` without a ground of its own, with its black in the colour of the page's
    text."""
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(rf"(fill|stroke): {INK}", r"\1: currentColor", svg).replace(
        "<text ", '<text fill="currentColor" '
    )
