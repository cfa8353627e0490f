"""Curves in a terminal, drawn with braille dots: two columns and four rows per character."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

Array = NDArray[np.float64]
COLOURS = ("blue", "yellow", "green", "magenta", "red", "cyan", "white")
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""Bits of dots above U+2800 by row and column."""
LEFT = 10
"""Width of the y labels."""


def chart(title: str, lines: Mapping[str, tuple[Array, Array]], width: int, height: int = 10) -> Text:
    """Draw all lines of points (x, y) with axis limits; non-finite points are left out.

    Where lines cross, the last one colours the character. Colours follow the order of `lines`; the caller
    prints the legend.
    """
    known = {name: _known(x, y) for name, (x, y) in lines.items()}
    points = [line for line in known.values() if len(line[0])]
    text = Text(f"{title}\n", style="bold")
    if not points:
        return text.append("no numbers yet\n", style="dim")
    (x0, x1), (y0, y1) = (_span(np.concatenate([line[axis] for line in points])) for axis in (0, 1))
    columns = max(10, width - LEFT - 1)
    dots = np.zeros((height, columns), dtype=np.int64)
    owner = np.zeros((height, columns), dtype=np.int64)
    for number, (x, y) in enumerate(known.values()):
        right = (x - x0) / (x1 - x0) * (2 * columns - 1)
        down = (y1 - y) / (y1 - y0) * (4 * height - 1)
        for column, row in _joined(right, down):
            dots[row // 4, column // 2] |= DOTS[row % 4, column % 2]
            owner[row // 4, column // 2] = number
    for i in range(height):
        label = {0: f"{y1:.4g}", height - 1: f"{y0:.4g}"}.get(i, "")
        text.append(f"{label:>{LEFT - 1}} ┤", style="dim")
        for bits, number in zip(dots[i], owner[i], strict=True):
            text.append(chr(0x2800 + bits), style=colour(number))
        text.append("\n")
    ends = f"{x0:.4g}".ljust(columns - len(f"{x1:.4g}")) + f"{x1:.4g}"
    return text.append(" " * (LEFT + 1) + ends + "\n", style="dim")


def colour(number: int) -> str:
    """The colour of line `number`."""
    return COLOURS[number % len(COLOURS)]


def _known(x: Array, y: Array) -> tuple[Array, Array]:
    good = np.isfinite(x) & np.isfinite(y)
    return x[good], y[good]


def _span(values: Array) -> tuple[float, float]:
    """Minimum and maximum, widened if equal."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _joined(right: Array, down: Array) -> set[tuple[int, int]]:
    """Dots (column, row) on the straight lines between points."""
    if len(right) == 1:
        return {(round(right[0]), round(down[0]))}
    found: set[tuple[int, int]] = set()
    for i in range(len(right) - 1):
        steps = int(max(abs(right[i + 1] - right[i]), abs(down[i + 1] - down[i]))) + 1
        columns = np.linspace(right[i], right[i + 1], steps + 1).round().astype(int)
        rows = np.linspace(down[i], down[i + 1], steps + 1).round().astype(int)
        found.update(zip(columns.tolist(), rows.tolist(), strict=True))
    return found
