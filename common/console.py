"""Output of commands: plain lines, escaped texts, tables without a frame, progress bars."""

import itertools
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

SOON_S, LONG_S = 5.0, 60.0
HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cs")
"""Unicode categories that move the cursor, hide or reorder text: control characters, format characters
(bidirectional, zero width, tags), line and paragraph separators, lone surrogates."""


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print `text` unchanged: no markup, no highlighting, no line breaks."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    r"""Split `text` into (piece, escaped): `a\x1b[2J` gives ("a", False), ("\\x1b", True), ("[2J", False)."""
    for hidden, characters in itertools.groupby(text, _is_hidden):
        piece = "".join(characters)
        yield "".join(map(_escape, piece)) if hidden else piece, hidden


def visible(text: str) -> str:
    """`text` with escaped control and format characters."""
    return "".join(piece for piece, _ in pieces(text))


def _is_hidden(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in HIDDEN


def _escape(character: str) -> str:
    r"""`\x1b`, `\u202e` or `\U000e0041`."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain_table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), header_style="dim")


def counting_bar(console: Console, *more: ProgressColumn) -> Progress:
    """A bar that counts, with elapsed time and the columns `more`."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), *more, console=console)


@contextmanager
def shown(bar: Progress) -> Iterator[Progress]:
    """Show `bar` while the block runs; without a terminal as lines, after SOON_S and then every LONG_S."""
    done = threading.Event()
    with bar:
        if not bar.console.is_terminal:
            threading.Thread(target=_tell, args=(bar, done), name="progress lines", daemon=True).start()
        try:
            yield bar
        finally:
            done.set()


@contextmanager
def working(
    what: str, total: int | None = None, console: Console | None = None
) -> Iterator[Callable[..., None]]:
    """A bar while the block runs, removed afterwards; lines if `console` (standard error) is no terminal.

    With `total` the bar fills up: call the yielded function with each part's name as it begins, or with
    `again=True` to say more of the current part. Without, it pulses."""
    console = console or Console(stderr=True)
    count = () if total is None else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), *count, TimeElapsedColumn())
    with shown(Progress(*columns, console=console, transient=True, disable=not console.is_terminal)) as bar:
        task, begun = bar.add_task(what, total=total), 0

        def begin(part: str, again: bool = False) -> None:
            nonlocal begun
            begun -= again
            bar.update(task, description=f"{what}: {part}", completed=begun)
            begun += 1

        yield begin


def _tell(bar: Progress, done: threading.Event) -> None:
    doing, due = list[str](), 0.0
    while not done.wait(SOON_S / 10):
        tasks, now = [task for task in bar.tasks if not task.finished], time.monotonic()
        before, doing = doing, [task.description for task in tasks]
        if doing != before:
            due = now + SOON_S
        elif tasks and now >= due:
            due = now + LONG_S
            say(bar.console, "; ".join(map(_line, tasks)))


def _line(task: Task) -> str:
    counted = "" if task.total is None else f" {task.completed:.0f}/{task.total:.0f}"
    more = "".join(f", {text}" for text in task.fields.values() if text)
    return f"{task.description}{counted}{more}, {task.elapsed or 0.0:.0f} s so far"
