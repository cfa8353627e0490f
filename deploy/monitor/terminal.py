"""`hora monitor`: show the snapshot of a run in a terminal, as JSON, or as plain lines in a pipe."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import redis
from rich.console import Console
from rich.live import Live

from hora_rl.common.config import TelemetryConfig
from hora_rl.common.console import say
from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import Redis, connect, hidden
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.monitor.feed import Read
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import RunState
from hora_rl.deploy.monitor.screen import line, screen

PERIOD_S = 1.0
LINE_PERIOD_S = 5.0


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
    """Serve the live page and its endpoints without Ray Serve."""
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
