"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """The lines of a table; with `numbers` all columns but the first are set to the right."""
    rule = "|---" + ("|---:" if numbers else "|---") * (len(head) - 1) + "|"
    return [_line(head), rule, *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
