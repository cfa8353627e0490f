"""`hora rollouts RUN`: print selected rollouts as text or JSON lines."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from hora_rl.common.console import pieces, visible
from hora_rl.common.errors import RunError
from hora_rl.common.rollout_files import REWARD
from hora_rl.evaluation.rollout_table import Order, read_rollouts

HEAD, TAIL = 1000, 500
"""Characters to print of a long text: its beginning, and its end, which holds the answer."""
Row = Mapping[str, Any]


def show_rollouts(
    run: Path,
    order: Order = "newest",
    limit: int = 10,
    *,
    as_json: bool = False,
    console: Console | None = None,
    step: int | None = None,
    prompt: int | None = None,
    success: bool | None = None,
) -> None:
    """Print rollouts selected as by `read_rollouts`. Raises HoraError if they cannot be read."""
    if not run.is_dir():
        raise RunError(f"{run}: no such folder; `hora runs` lists the runs there are")
    console = console or Console()
    table = read_rollouts(run, step=step, prompt=prompt, success=success, order=order, limit=limit)
    rows: list[Row] = table.to_pylist()
    if as_json:
        for row in rows:
            console.file.write(json_line(row) + "\n")
        return
    width = min(console.width, 120)
    for _, group in groupby(rows, key=lambda row: (row["step"], row["group"])):
        _show_group(list(group), console, width)
    more = "; --limit N shows more" if len(rows) == limit else ""
    console.print(Text(f"{len(rows)} rollout{'s' * (len(rows) != 1)}{more}", style="dim"))


def json_line(row: Row) -> str:
    """One rollout as JSON in ASCII, without control characters."""
    return json.dumps(row, separators=(",", ":")).replace("\x7f", "\\u007f")


def _show_group(rows: Sequence[Row], console: Console, width: int) -> None:
    first = rows[0]
    source = f" · {first['source']}" if first["source"] else ""
    title = f"step {first['step']} · prompt {first['prompt']} · epoch {first['epoch']}{source}"
    console.print(Rule(Text.assemble(*styled(title, "bold")), align="left", style="dim"), width=width)
    console.print(Padding(_text(first["prompt_text"], "cyan"), (0, 0, 0, 2)), width=width)
    for row in rows:
        console.print()
        console.print(headline(row), width=width)
        console.print(Text(timeline(row), style="dim"), width=width)
        console.print(Padding(_text(row["completion"]), (0, 0, 0, 2)), width=width)
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


def _text(text: str, style: str = "") -> Text:
    text = text.strip("\n")
    if len(text) > HEAD + TAIL + 200:
        left = len(text) - HEAD - TAIL
        cut = (f"\n… {left:,} characters left out; --json has them …\n", "dim italic")
        return Text.assemble(*styled(text[:HEAD], style), cut, *styled(text[-TAIL:], style))
    return Text.assemble(*styled(text, style)) if text else Text("(empty)", "dim italic")


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "?"
    return f"{value:.3g}"


def _seconds(seconds: float) -> str:
    """Format a duration, which may be negative if clocks of two machines differ."""
    return f"{1000 * seconds:.0f} ms" if abs(seconds) < 1 else f"{seconds:.1f} s"
