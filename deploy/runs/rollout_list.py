"""`hora rollouts RUN`: print selected rollouts as text or JSON lines."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from hora_rl.common.console import pieces, say, visible
from hora_rl.common.errors import RunError
from hora_rl.common.rollout_files import REWARD
from hora_rl.evaluation.rollout_table import Order, Wanted, read_rollouts, steps_of

HEAD, TAIL = 1000, 500
"""Characters to print of a long text: its beginning, and its end, which holds the answer."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choice(Wanted):
    """Selection of rollouts: the arguments of `read_rollouts`."""

    order: Order = "newest"
    limit: int = 10

    @property
    def in_words(self) -> str:
        """` of step 3, prompt 7, failures`; empty without a filter."""
        named = [
            f"{n} {v}" for n in ("step", "prompt", "phase", "source") if (v := getattr(self, n)) is not None
        ]
        kind = {None: [], True: ["successes"], False: ["failures"]}[self.success]
        return f" of {', '.join(named + kind)}" if named or kind else ""


def show_rollouts(
    run: Path, choice: Choice, *, as_json: bool = False, full: bool = False, console: Console | None = None
) -> None:
    """Print the selected rollouts. Raises RunError if the folder does not exist, and RunFolderError if files
    cannot be read."""
    if not run.is_dir():
        raise RunError(f"{run}: no such folder; `hora runs` lists the runs there are")
    console = console or Console()
    rows = rows_of(run, choice)
    if as_json:
        for row in rows:
            console.file.write(json_line(row) + "\n")
        return
    if not rows:
        steps = steps_of(run)
        say(
            console,
            f"no rollouts{choice.in_words}; there are those of {len(steps)} steps, {steps[0]} to {steps[-1]}",
        )
        return
    width = min(console.width, 120)
    for _, group in groupby(rows, key=lambda row: (row["step"], row["group"])):
        _show_group(list(group), console, width, full)
    console.print(Text(_footer(len(rows), choice), style="dim"), soft_wrap=True)


def rows_of(run: Path, choice: Choice) -> list[dict[str, Any]]:
    """The selected rows as dicts."""
    table = read_rollouts(run, **asdict(choice))
    return cast("list[dict[str, Any]]", table.to_pylist())


def json_line(row: Row) -> str:
    """One rollout as JSON in ASCII, without control characters."""
    return json.dumps(row, separators=(",", ":")).replace("\x7f", "\\u007f")


def _footer(n: int, choice: Choice) -> str:
    order = {
        "newest": "newest step first",
        "oldest": "oldest step first",
        "longest": "longest first",
        "least_likely": "lowest mean log-prob per token first",
    }[choice.order]
    more = "; --limit N shows more" if n == choice.limit else ""
    return f"{n} rollout{'s' * (n != 1)}{choice.in_words}, {order}{more}"


def _show_group(rows: Sequence[Row], console: Console, width: int, full: bool) -> None:
    first = rows[0]
    source = f" · {first['source']}" if first["source"] else ""
    title = f"step {first['step']} · prompt {first['prompt']} · epoch {first['epoch']}{source}"
    console.print(Rule(Text.assemble(*styled(title, "bold")), align="left", style="dim"), width=width)
    console.print(Padding(_text(first["prompt_text"], full, "cyan"), (0, 0, 0, 2)), width=width)
    for row in rows:
        console.print()
        console.print(headline(row), width=width)
        console.print(Text(timeline(row), style="dim"), width=width)
        console.print(Padding(_text(row["completion"], full), (0, 0, 0, 2)), width=width)
    console.print()


def headline(row: Row) -> Text:
    """`#3 B hit  reward 1 (accuracy 1, format 1)  35 tokens, stop  v38–39  log-prob −0.21`."""
    hit = Text("hit ", "bold green") if row["success"] else Text("miss", "bold red")
    earned = {name.removeprefix(REWARD): row[name] for name in row if name.startswith(REWARD)}
    parts = ", ".join(f"{name} {_number(value)}" for name, value in earned.items() if value is not None)
    versions = f"v{row['version_min']}"
    if row["version_max"] != row["version_min"]:
        versions += f"–{row['version_max']}"
    again = f" round {row['round']}" if row["round"] > 1 else ""
    facts = (
        f"reward {_number(row['reward'])} ({parts})  {row['length']} tokens, {row['finish']}  {versions}  "
        f"log-prob {_number(row['logprob'])}"
    )
    return Text.assemble(
        (f"#{row['number']} ", "bold"), (f"{row['phase']}{again} ", "magenta"), hit, "  ", *styled(facts)
    )


def timeline(row: Row) -> str:
    """Durations of sampling and scoring, if recorded."""
    if row["replica"] is None or row["queued"] is None:
        return "no times were noted"
    first, decode = row["first_token"] - row["queued"], row["done"] - row["first_token"]
    scored = row["scored"] - row["done"]
    return (
        f"first token after {_seconds(first)}, decoded in {_seconds(decode)}, scored after "
        f"{_seconds(scored)}, by {visible(row['replica'])}"
    )


def styled(text: str, style: str = "") -> Iterable[tuple[str, str]]:
    """Pieces of rich text, with escaped characters highlighted."""
    return [(piece, "reverse dim" if out else style) for piece, out in pieces(text)]


def _text(text: str, full: bool, style: str = "") -> Text:
    text = text.strip("\n")
    if not full and len(text) > HEAD + TAIL + 200:
        left = len(text) - HEAD - TAIL
        cut = (f"\n… {left:,} characters left out; --full shows them …\n", "dim italic")
        return Text.assemble(*styled(text[:HEAD], style), cut, *styled(text[-TAIL:], style))
    return Text.assemble(*styled(text, style)) if text else Text("(empty)", "dim italic")


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "?"
    return f"{value:.3g}"


def _seconds(seconds: float) -> str:
    """Format a duration, which may be negative if clocks of two machines differ."""
    return f"{1000 * seconds:.0f} ms" if abs(seconds) < 1 else f"{seconds:.1f} s"
