"""What commands print: lines as they are, tables without a frame, bars."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print `text` as it is: no markup, no colours of its own, no line broken."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def plain_table() -> Table:
    """A table without a frame, to which columns and rows are added."""
    return Table(box=None, padding=(0, 2, 0, 0), header_style="dim")


def counting_bar(console: Console, *more: ProgressColumn) -> Progress:
    """A bar over things that are counted, with the time that passed and the columns `more`."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), *more, console=console)
