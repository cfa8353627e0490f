"""Evaluate the initial policy while the learner starts.

    application is deployed ─┬─► generators load ─┬─► evaluation of version 0 ───────► version 1 is published
                             │                    └─► the first batch ─┐           │
                             └─► learner: processes, model, engine ────┴─► first step

Generators hold one version of the weights. So the learner does not publish the weights of its first step
before the evaluation ends (`Keys.hold`); with `generator.sleep` the learner waits before that step. A stopped
or failed evaluation leaves the hold until it expires, because the resumed run completes the evaluation and
surviving parts must not publish weights.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import redis

from hora_rl.common.errors import HoraError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.processes import background_thread
from hora_rl.deploy.launch.evaluation import TrainingRun, evaluate_run, is_missing

HOLD_S, RENEW_S = 120, 10.0
Up = Callable[[threading.Event], bool]
"""Waits until the replicas are up. False if the event is set first."""


class Cancellable:
    """Runs coroutines in the calling thread until another thread calls `cancel`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self.cancelled = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of `work`. Raises CancelledError after `cancel`, also if it was called before."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            with self._lock:
                task = loop.create_task(work)
                self._running = loop, task
                if self.cancelled:
                    task.cancel()
            try:
                return loop.run_until_complete(task)
            finally:
                with self._lock:
                    self._running = None

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            if self._running is not None:
                loop, task = self._running
                loop.call_soon_threadsafe(task.cancel)


class FirstEvaluation:
    """Evaluates version 0 in the thread that calls `run`. Other threads may wait for the end or stop it. An
    error ends the learner by `stop`."""

    def __init__(self, run: TrainingRun, up: Up, stop: Callable[[], None]) -> None:
        self._run, self._up, self._stop, self._sampling = run, up, stop, Cancellable()
        self._over, self._complete = threading.Event(), False
        self.error: Exception | None = None

    def run(self) -> None:
        """Wait for the replicas and evaluate. An error, also of a replica's start, is stored in `error`."""
        try:
            with suppress(asyncio.CancelledError):
                if self._up(self._over):
                    evaluate_run(self._run, 0, self._sampling.run)
                    self._complete = True
        except (HoraError, OSError, redis.exceptions.RedisError) as error:
            if not self._sampling.cancelled:
                self.error = error
                self._stop()
        finally:
            self._over.set()

    def wait(self) -> None:
        self._over.wait()

    def close(self) -> None:
        """Stop the evaluation from another thread. Samples are kept."""
        self._sampling.cancel()
        self._over.set()

    def hold(self, _: threading.Event) -> None:
        """Renew the hold on the learner until the evaluation ends. Lift the hold if it is complete."""
        client, key = connect(self._run.url, patient=True), Keys(self._run.config.run.name).hold
        while not self._over.wait(RENEW_S):
            client.set(key, 1, ex=HOLD_S)
        if self._complete:
            client.delete(key)


@contextmanager
def evaluating_first(run: TrainingRun, up: Up, stop: Callable[[], None]) -> Iterator[FirstEvaluation]:
    """Hold back the learner's weights until the initial policy is evaluated, if the run needs that. The block
    calls `run` in a thread, and trains. An evaluation that fails ends the learner by `stop`; its error is
    raised when the block ends."""
    first, client, key = FirstEvaluation(run, up, stop), connect(run.url), Keys(run.config.run.name).hold
    with ExitStack() as exits:
        if is_missing(run.config.evaluation, run.folder, 0):
            client.set(key, 1, ex=HOLD_S)
            exits.enter_context(background_thread("hold", first.hold, RENEW_S))
        else:
            client.delete(key)  # left by a killed launcher
        exits.callback(first.close)
        try:
            yield first
        except HoraError:  # the learner was stopped
            if first.error is None:
                raise
    if first.error is not None:
        raise first.error
