"""`hora monitor`: the snapshot of a run in a terminal, as one JSON object, or as plain lines in a pipe."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import redis
from rich.console import Console
from rich.live import Live

from hora_rl.common.console import say
from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import Redis, connect, hidden
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.monitor.feed import Read
from hora_rl.deploy.monitor.presence import Presence
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import RunState
from hora_rl.deploy.monitor.screen import line, screen

PERIOD_S = 1.0
LINE_PERIOD_S = 5.0
ENDED = ("finished", "stopped")


def monitor(
    redis_url: str,
    run: str,
    json_: bool = False,
    once: bool = False,
    file: RunFile | None = None,
    read: Read = read_run,
) -> None:
    """Show `run` as `read` finds it until Ctrl-C or its end, whose last snapshot stays on the screen; one
    snapshot with `once` or `json_`.

    `file` is the run's record, where there may be one: of a run whose Redis ended with it, it knows how.

    Raises RunError with a sentence when Redis refuses or is away at the start, or knows no such run.
    """
    client: Redis = connect(redis_url, retries=0)
    if json_:
        print(json.dumps(_settled(client, run, read).to_dict()))
        return
    console = Console()
    if once:
        console.print(screen(_settled(client, run, read), console.width))
        return
    presence = Presence(redis_url, run)

    def watching(client: Redis, run: str) -> RunState:
        presence.update(True)
        return read(client, run)

    try:
        if console.is_terminal:
            last, ending = _watch(client, redis_url, run, console, file, watching)
            console.print(screen(last, console.width))
            if ending:
                say(console, ending)
        else:
            _follow(client, redis_url, run, file, watching)
    except KeyboardInterrupt:
        return


def serve_page(
    redis_url: str,
    run: str,
    host: str,
    port: int,
    read: Read = read_run,
    names: Sequence[str] = (),
    folder: Path | None = None,
) -> None:
    """The live page and its endpoints without Serve, so that a run can be looked at while Serve is down.
    `folder` is the run's where it is here."""
    import uvicorn

    from hora_rl.deploy.monitor.request_limits import LimitedProtocol
    from hora_rl.deploy.monitor.web import create_app

    uvicorn.run(
        create_app(redis_url, run, names=(host, *names), read=read, folder=folder),
        host=host,
        port=port,
        http=LimitedProtocol,
        log_level="warning",
        access_log=False,
    )


def _settled(client: Redis, run: str, read: Read) -> RunState:
    """A snapshot with rates in it: where nobody watches yet, the first sample is a second away."""
    state = read(client, run)
    if not state.sparks["depth"] and state.status == "running":
        time.sleep(1.1)
        state = read(client, run)
    return state


def _watch(
    client: Redis, url: str, run: str, console: Console, file: RunFile | None, read: Read
) -> tuple[RunState, str | None]:
    """The last snapshot, and how the run ended where only its record says so."""
    state, problem = read(client, run), ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while problem or state.status not in ENDED:
            live.update(screen(state, console.width, problem), refresh=True)
            time.sleep(PERIOD_S)
            try:
                state, problem = read(client, run), ""
            except (RunError, redis.exceptions.RedisError) as error:
                if file and (ending := file.ending()):
                    return state, ending
                problem = _sentence(error, url)
    return state, None


def _follow(client: Redis, url: str, run: str, file: RunFile | None, read: Read) -> None:
    """Plain lines, as a log wants them; ends with the run."""
    while True:
        try:
            state = read(client, run)
            print(line(state), flush=True)
            if state.status in ENDED:
                return
        except redis.exceptions.RedisError as error:
            if file and (ending := file.ending()):
                print(ending, flush=True)
                return
            print(_sentence(error, url), file=sys.stderr, flush=True)
        time.sleep(LINE_PERIOD_S)


def _sentence(error: Exception, url: str) -> str:
    if isinstance(error, RunError):
        return str(error)
    return f"Redis at {hidden(url)} does not answer ({error}); this continues when it does"
