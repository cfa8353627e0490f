"""Views of a run in a terminal: `hora monitor` (a screen, JSON, or plain lines in a pipe), and the progress,
speed and remaining time in that of `hora run` and `hora train`."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain

import redis
from redis.exceptions import RedisError
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from hora_rl.common.config import TelemetryConfig
from hora_rl.common.console import LONG_S, say, shown
from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import Redis, connect, hidden
from hora_rl.common.processes import background_thread
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.monitor.alerts import Alerts
from hora_rl.deploy.monitor.feed import Read
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import Kind, RunState
from hora_rl.deploy.monitor.screen import line, screen
from hora_rl.evaluation.evaluate import Progress as Sampled

PERIOD_S = 1.0
LINE_PERIOD_S = 5.0
QUIET_S = 300.0
END_S = 5.0


def monitor(
    redis_url: str,
    run: str,
    json_: bool = False,
    once: bool = False,
    file: RunFile | None = None,
    read: Read = read_run,
) -> None:
    """Show `run` until Ctrl-C or its end, and leave the last snapshot on the screen; with `once` or `json_`
    one snapshot. The record `file`, if any, tells how a run ended whose Redis is gone. Raises RunError if
    Redis refuses the connection or is down at the start, or has no such run."""
    client: Redis = connect(redis_url, retries=0)
    if json_:
        print(json.dumps(_settled(client, run, read).to_dict()))
        return
    console = Console()
    if once:
        console.print(screen(_settled(client, run, read), console.width))
        return
    with suppress(KeyboardInterrupt):
        period_s = PERIOD_S if console.is_terminal else LINE_PERIOD_S
        snapshots = _snapshots(client, redis_url, run, file, read, period_s)
        if console.is_terminal:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                for state, problem in snapshots:
                    live.update(screen(state, console.width, problem), refresh=True)
            console.print(screen(state, console.width))
        else:
            for state, problem in snapshots:
                print(problem or line(state), file=sys.stderr if problem else sys.stdout, flush=True)
        if not state.ended and file and (ending := file.ending()):
            say(console, ending)


def serve_page(
    redis_url: str, run: str, telemetry: TelemetryConfig, port: int, read: Read = read_run
) -> None:
    import uvicorn

    from hora_rl.deploy.monitor.web import create_app

    uvicorn.run(
        create_app(redis_url, run, names=(telemetry.http_host, *telemetry.http_names), read=read),
        host=telemetry.http_host,
        port=port,
        limit_concurrency=1000,
        log_level="warning",
        access_log=False,
    )


def _settled(client: Redis, run: str, read: Read) -> RunState:
    """A snapshot with rates. If no sample exists yet, wait a second for the first one."""
    state = read(client, run)
    if not any(state.rates.values()) and state.status == "running":
        time.sleep(1.1)
        state = read(client, run)
    return state


def _snapshots(
    client: Redis, url: str, run: str, file: RunFile | None, read: Read, period_s: float
) -> Iterator[tuple[RunState, str]]:
    """Yield the newest snapshot every `period_s` seconds until the run ends, with the reason if it is
    outdated."""
    state, problem = read(client, run), ""
    yield state, problem
    while problem or not state.ended:
        time.sleep(period_s)
        try:
            state, problem = read(client, run), ""
        except (RunError, redis.exceptions.RedisError) as error:
            if file and file.ending():
                return
            problem = str(error)
            if not isinstance(error, RunError):
                problem = f"Redis at {hidden(url)} does not answer ({error}); this continues when it does"
        yield state, problem


@contextmanager
def progress(
    name: str,
    steps: int,
    url: str,
    console: Console,
    alerts: Alerts | None = None,
    first: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    """Show the progress of run `name` while the block runs: a bar in a terminal, else a line per step.
    `alerts` receives every shown warning. Calls `first` before; until it returns only notices are shown: a
    learner that starts beside the engine may say one and end before the engine is up."""
    tell = Teller(console, alerts)
    show = show_bar if console.is_terminal else show_lines
    started = threading.Event()

    def start(_: threading.Event) -> None:
        first()
        started.set()

    def run(done: threading.Event) -> None:
        states = _states(name, url, done)
        for state in states:
            notices = tuple(w for w in state.warnings if w.kind is Kind.NOTICE)
            tell(replace(state, warnings=notices))
            if started.is_set() or done.is_set():
                show(chain([state], states), steps, tell)
                break

    with background_thread("progress", run, END_S), background_thread("first", start, END_S):
        yield


def show_bar(states: Iterable[RunState], steps: int, tell: Teller) -> None:
    """A progress bar that follows `states`. Bar, step, time left and rate fit into 80 columns; wider
    terminals show more figures."""
    bars = BarColumn(bar_width=12), MofNCompleteColumn(table_column=Column(no_wrap=True))
    what, left = (
        TextColumn(f"{{task.{f}}}", table_column=Column(no_wrap=True))
        for f in ("description", "fields[left]")
    )
    rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    text = TextColumn("{task.fields[text]}", table_column=rest)
    with Progress(what, *bars, left, text, console=tell.console, expand=True) as bar:
        task = bar.add_task("starting", total=steps, left="", text="")
        for state in states:
            tell(state)
            does = "training" if state.step or state.of("learner") else "starting"
            bar.update(task, completed=state.step, description=does, left=_left(state), text=figures(state))


def show_lines(states: Iterable[RunState], steps: int, tell: Teller) -> None:
    """One line per step, and every LONG_S during a long step."""
    last, due, console = -1, 0.0, tell.console
    for state in states:
        tell(state)
        if state.step != last or state.time >= due:
            last, due = state.step, state.time + LONG_S
            say(console, f"step {state.step}/{steps} {_left(state)}  {figures(state)}")


def _states(name: str, url: str, done: threading.Event) -> Iterator[RunState]:
    """One state per second, and one at the end. Skipped while Redis is down."""
    client, last_look = connect(url), False
    while not last_look:
        last_look = done.wait(PERIOD_S)
        try:
            yield read_run(client, name)
        except (RedisError, RunError):
            continue


class Teller:
    """Prints each kind of warning and each notice once, and again if it returns after QUIET_S. Also sends it
    to `alerts`."""

    def __init__(self, console: Console, alerts: Alerts | None = None) -> None:
        self.console, self._alerts = console, alerts
        self._printed: dict[str, float] = {}

    def __call__(self, state: RunState) -> None:
        starting = state.last_step_s is None and not state.warns(Kind.STALLED)
        for warning in state.warnings:
            if starting and warning.kind is Kind.NOT_ALIVE:
                continue
            key = warning.text if warning.kind == Kind.NOTICE else warning.kind
            if state.time - self._printed.get(key, -QUIET_S) >= QUIET_S:
                say(self.console, f"! {warning}", "yellow")
                if self._alerts is not None:
                    self._alerts.notify(warning.kind, warning.text, state.step)
            self._printed[key] = state.time


def _left(state: RunState) -> str:
    """The time until the last step, if each takes as long as the newest."""
    seconds = state.learner.get("time/step")
    if not seconds:
        return "-:-- left"
    minutes, seconds = divmod(round(seconds * (state.steps - state.step)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes}:{seconds:02d} left"


def figures(state: RunState) -> str:
    """Figures of the run, the rate first. Before the first step, the missing parts."""
    if not state.learner:
        missing = [kind for kind in ("generator", "verifier", "coordinator", "learner") if not state.of(kind)]
        return f"waiting for {', '.join(missing)}" if missing else "waiting for the first groups"
    parts = [f"{state.rates['rollouts_in']:.0f} rollouts/s"]
    if "reward" in state.learner:
        parts.append(f"reward {state.learner['reward']:.2f}")
    step, wait = state.learner.get("time/step") or 0.0, state.learner.get("time/wait") or 0.0
    if step:
        parts.append(f"learner waits {wait / step:.0%}")
    return "  ".join([*parts, f"lag {state.lag['mean']:.1f}"])


@contextmanager
def sampling_bar(title: str, total: int, console: Console) -> Iterator[Callable[[Sampled], None]]:
    """A bar over `total` completions while the block runs. Yields the function that updates it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    rate = TextColumn("{task.fields[figures]}")
    hidden = not console.is_terminal
    with shown(Progress(*columns, rate, console=console, transient=True, disable=hidden)) as bar:
        task = bar.add_task(title, total=total, figures="")

        def update(p: Sampled) -> None:
            minutes, seconds = divmod(round(p.left_s or 0), 60)
            figures = f"{p.tokens / max(p.seconds, 1e-9):,.0f} tokens/s, {minutes}:{seconds:02d} left"
            bar.update(task, completed=p.done, figures=figures)

        yield update
