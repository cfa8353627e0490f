"""`hora runs`: list runs with state, step and the reason of their end."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from hora_rl.common.console import plain_table
from hora_rl.common.errors import RunError
from hora_rl.deploy.machine.record import RUN, RunFile

STEPS = "steps.jsonl"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of `hora runs`. `state` is that of run.json, or `lost` if a running process is gone."""

    run: str
    folder: str
    state: str
    reason: str
    started: float = 0.0
    step: int | None = None
    reward: float | None = None


def list_runs(folder: Path | str) -> list[RunSummary]:
    """All runs in `folder`, newest first. Raises RunError if the folder does not exist."""
    base = Path(folder)
    if not base.is_dir():
        raise RunError(f"{base}: no such folder; runs are written to run.folder of the configuration")
    runs = [_summary(path.parent) for path in base.glob(f"*/{RUN}")]
    return sorted(runs, key=lambda s: s.started, reverse=True)


def show_runs(runs: Sequence[RunSummary], console: Console | None = None) -> None:
    """Print a table: state, step, last reward, start, and the reason of the end."""
    console = console or Console()
    if not runs:
        console.print("no runs yet")
        return
    table = plain_table()
    for name, justify in (("run", "left"), ("state", "left"), ("step", "right"), ("reward", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("started", no_wrap=True)
    table.add_column("", overflow="fold")
    for run in runs:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)) if run.started else ""
        reward = "" if run.reward is None else f"{run.reward:.3f}"
        step = "" if run.step is None else str(run.step)
        name = run.run if run.folder == run.run else f"{run.run} ({run.folder})"
        table.add_row(*(Text(t) for t in (name, run.state, step, reward, started, run.reason)))
    console.print(table)


def _summary(folder: Path) -> RunSummary:
    file = RunFile(folder)
    try:
        record = file.read()
    except RunError as error:
        return RunSummary(folder.name, folder.name, "unreadable", str(error))
    state: str = record.state
    reason = record.reason
    if state == "running" and not record.alive:
        state, reason = "lost", "its process is gone without a word"
    summary = RunSummary(record.run, folder.name, state, reason, record.started)
    try:
        last = _last_step(folder / STEPS)
        return replace(summary, step=int(last["step"]) + 1, reward=last.get("reward")) if last else summary
    except (OSError, ValueError, KeyError, TypeError) as error:
        damaged = f"{STEPS} cannot be read ({type(error).__name__})"
        return replace(summary, reason="; ".join(filter(None, (reason, damaged))))


def _last_step(path: Path) -> dict[str, Any] | None:
    """The last complete line of steps.jsonl; the learner may be writing the next one."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65536))
        lines = file.read().split(b"\n")[:-1]
    return json.loads(lines[-1]) if lines else None
