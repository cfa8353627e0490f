"""What commands print: lines as they are, and tables without a frame."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print `text` as it is: no markup, no colours of its own, no line broken."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def plain_table() -> Table:
    """A table without a frame, to which columns and rows are added."""
    return Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
