"""Self-contained HTML pages of reports from `templates/`, for light and dark mode."""

import io
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from matplotlib import rc_context
from matplotlib.figure import Figure

TEMPLATES = Path(__file__).with_name("templates")
INK = "#000000"
"""matplotlib's black (text, axes, seventh line). Replaced by the page's text colour."""


def write_page(path: Path, template: str, **facts: object) -> Path:
    """Render `template` with these facts to `path`."""
    pages = Environment(autoescape=True, loader=FileSystemLoader(TEMPLATES), trim_blocks=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pages.get_template(f"{template}.html").render(facts), encoding="utf-8")
    return path


def inline_svg(figure: Figure) -> str:
    """The figure as a transparent `<svg>`, with black replaced by the page's text colour."""
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(rf"(fill|stroke): {INK}", r"\1: currentColor", svg).replace(
        "<text ", '<text fill="currentColor" '
    )
