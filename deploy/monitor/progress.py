"""What a person sees while something takes long: a bar over its parts, and the live line of a training run."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from common.config import Config
from common.errors import RunError
from common.redis import connect
from deploy.monitor.run_state import RunState, read_run
from deploy.monitor.warnings import notices

EVERY_S = 1.0
LONG_S = 60.0
SECONDS = re.compile(r"\d+ s\b")


@contextmanager
def working(
    what: str, total: int | None = None, console: Console | None = None
) -> Iterator[Callable[[str], None]]:
    """A bar while the block runs, gone afterwards. Where `console` (standard error) is no terminal, a line for each minute that
    one part takes.

    With `total` parts it fills up and counts them: call what it yields as each begins, with its name. Without, it
    only moves.
    """
    console = console or Console(stderr=True)
    count = () if total is None else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), *count, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, begun, doing, done = bar.add_task(what, total=total), 0, what, threading.Event()

        def begin(part: str) -> None:
            nonlocal begun, doing
            doing = f"{what}: {part}"
            bar.update(task, description=doing, completed=begun)
            begun += 1

        def say() -> None:
            said, minutes = doing, 0
            while not done.wait(LONG_S):
                minutes = minutes + 1 if doing == said else 1
                said = doing
                console.print(f"{doing} for {minutes * LONG_S:.0f} s", markup=False)

        if not console.is_terminal:
            threading.Thread(target=say, name="working", daemon=True).start()
        try:
            yield begin
        finally:
            done.set()


@contextmanager
def counting_replicas(app: str, begin: Callable[[str], None]) -> Iterator[None]:
    """Call `begin` once, and again for each replica of Serve's application `app` that is up, while the block runs."""
    done = threading.Event()
    thread = threading.Thread(target=_count_replicas, args=(app, begin, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(5.0)


def _count_replicas(app: str, begin: Callable[[str], None], done: threading.Event) -> None:
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    begin("replicas")
    counted = 0
    while not done.wait(EVERY_S):
        try:
            found = serve.status().applications.get(app)
        except (RayError, RayServeException):
            return  # whoever starts the application meets the same, and says so
        states = [] if found is None else [d.replica_states for d in found.deployments.values()]
        up = sum(count for s in states for state, count in s.items() if state == "RUNNING")
        for _ in range(counted, up):
            begin("replicas")
        counted = max(counted, up)


@contextmanager
def progress(config: Config, url: str, console: Console) -> Iterator[None]:
    """Show the run's progress while the block runs: a bar in a terminal, a line per step elsewhere."""
    done = threading.Event()
    show = _bar if console.is_terminal else _lines
    thread = threading.Thread(target=show, args=(config, url, console, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(5.0)


def _bar(config: Config, url: str, console: Console, done: threading.Event) -> None:
    columns = (
        TextColumn("training"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=config.learner.steps, text="waiting for the first groups")
        for state in _readings(config, url, done):
            bar.update(task, completed=state.step, text=_text(state))


def _lines(config: Config, url: str, console: Console, done: threading.Event) -> None:
    last, told = -1, set[str]()
    for state in _readings(config, url, done):
        if state.step != last:
            last = state.step
            console.print(f"step {state.step}/{state.steps} {_text(state)}", markup=False)
        for notice in notices(state):
            kind = SECONDS.sub("", notice.text)
            if kind not in told:
                told.add(kind)
                console.print(f"! {notice}", markup=False, soft_wrap=True)


def _readings(config: Config, url: str, done: threading.Event) -> Iterator[RunState]:
    """One reading a second, and one at the very end; a Redis that is away for a moment only delays the next."""
    client = connect(url)
    last_look = False
    while not last_look:
        last_look = done.wait(EVERY_S)
        try:
            yield read_run(client, config.run.name)
        except (RedisError, RunError):
            continue


def _text(state: RunState) -> str:
    parts = [f"{state.rates['rollouts_in']:.0f} rollouts/s"]
    if "reward" in state.learner:
        parts.append(f"reward {state.learner['reward']:.2f}")
        parts.append(f"accuracy {state.learner['reward/accuracy']:.2f}")
        parts.append(f"lag {state.lag['mean']:.1f}")
    parts += [f"! {w}" for w in state.warnings[:1]]
    return "  ".join(parts)
