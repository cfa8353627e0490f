"""What the pages look like, light or dark as the reader's system is."""

from __future__ import annotations

import io
import re

from matplotlib import rc_context
from matplotlib.figure import Figure

CSS = """
 :root { color-scheme: light dark;
  --ink: #1a1a1a; --ground: #ffffff; --faint: #555; --rule: #ddd; --mark: #d8f0d8 }
 @media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --ground: #16181c; --faint: #a0a0a0; --rule: #3a3d44; --mark: #1e4d2b }
 }
 body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem;
  color: var(--ink); background: var(--ground) }
 .wide { overflow-x: auto }
 table { border-collapse: collapse; font-variant-numeric: tabular-nums }
 th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap }
 th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left }
 thead tr { border-bottom: 2px solid var(--faint) }
 tbody tr { border-bottom: 1px solid var(--rule) }
 .best { font-weight: 700; background: var(--mark) }
 small { color: var(--faint); font-weight: 400 }
 figure { margin: 0 }
 svg { max-width: 100%; height: auto }
"""
INK = "#000000"
"""matplotlib's black, which text, axes and the seventh line have: it becomes the page's text colour."""


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
