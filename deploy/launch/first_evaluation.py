"""The evaluation of the initial policy, while the learner starts.

    application is deployed ─┬─► generators load ─┬─► evaluation of version 0 ───────► version 1 is published
                             │                    └─► the first batch ─┐           │
                             └─► learner: processes, model, engine ────┴─► first step

Generators hold one version of the weights, so the learner keeps the weights of its first step until the
evaluation is over (`Keys.hold`); with `generator.sleep` it waits before that step. An evaluation that is
stopped or fails leaves the hold, which expires: what still lives of the run must not publish weights, because
the resumed run completes the evaluation.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.errors import HoraError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.deploy.launch.evaluation import evaluate_run, is_missing
from hora_rl.evaluation.evaluate import Counts

HOLD_S, RENEW_S = 120, 10.0
Up = Callable[[threading.Event], bool]
"""Waits until the replicas are up: False when the event is set before."""


class FirstEvaluation:
    """Evaluates version 0 in the thread that calls `run`; the others may wait for it or stop it."""

    def __init__(self, config: Config, url: str, run_dir: Path, console: Console, up: Up) -> None:
        self._config, self._url, self._run_dir, self._console = config, url, run_dir, console
        self._up = up
        self._over, self._here = threading.Event(), threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Counts] | None = None
        self._stopped = self._complete = False
        self.error: Exception | None = None

    def run(self) -> None:
        """From when the replicas are up to its end. An error is kept, also of a replica that does not start,
        and interrupts the main thread as Ctrl-C does."""
        try:
            with suppress(asyncio.CancelledError):
                if self._up(self._over):
                    evaluate_run(self._config, self._url, self._run_dir, 0, self._console, self._draw)
                    self._complete = True
        except (HoraError, OSError, redis.exceptions.RedisError) as error:
            if not self._stopped:
                self.error = error
                os.kill(os.getpid(), signal.SIGINT)
        finally:
            self._over.set()

    def wait(self) -> None:
        self._over.wait()

    def close(self) -> None:
        """From another thread. What was sampled is kept."""
        with self._here:
            self._stopped = True
            if self._loop is not None and self._task is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._over.set()

    def hold(self) -> None:
        """Renew the hold on the learner until the evaluation is over; then lift it, if it is complete."""
        client, key = connect(self._url, patient=True), Keys(self._config.run.name).hold
        while not self._over.wait(RENEW_S):
            client.set(key, 1, ex=HOLD_S)
        if self._complete:
            client.delete(key)

    def _draw(self, sampling: Coroutine[Any, Any, Counts]) -> Counts:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            with self._here:
                self._loop, self._task = loop, loop.create_task(sampling)
                if self._stopped:
                    self._task.cancel()
            return loop.run_until_complete(self._task)


@contextmanager
def evaluating_first(
    config: Config, url: str, run_dir: Path, console: Console, up: Up
) -> Iterator[FirstEvaluation]:
    """Hold the learner's weights back until the evaluation of the initial policy is over, where the run has
    one to make: the block calls `run`. Raises its error when the block ends."""
    first = FirstEvaluation(config, url, run_dir, console, up)
    holding = threading.Thread(target=first.hold, name="hold", daemon=True)
    if is_missing(config.evaluation, run_dir, 0):
        connect(url).set(Keys(config.run.name).hold, 1, ex=HOLD_S)
        holding.start()
    else:
        connect(url).delete(Keys(config.run.name).hold)  # of a launcher that was killed
    try:
        yield first
    except (KeyboardInterrupt, SystemExit, HoraError):  # what Ray Train makes of an interrupt
        if first.error is None:
            raise
    finally:
        first.close()
        if holding.ident is not None:
            holding.join(RENEW_S)
    if first.error is not None:
        raise first.error
