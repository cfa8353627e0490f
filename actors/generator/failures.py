"""What an engine does while it starts, why its processes ended, and whether it hangs.

vLLM logs an error in the failing process; the parent only gets "see root cause above", and nothing of the
start. So every engine process also writes the error, and each stage of its start, to an in-memory file of its
parent. vLLM waits for its processes as long as they live.
"""

import logging
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from hora_rl.common.errors import root_cause
from hora_rl.common.processes import background_thread
from hora_rl.common.weights.announcement import path_of

ENV = "HORA_ENGINE_NOTES"
FATAL = ("EngineCore failed", "EngineCore encountered", "WorkerProc failed")
"""Prefixes of the last message of a failing vLLM process."""
ELSEWHERE = "root cause"
STAGE, TAIL = "stage: ", 2**14
"""Prefix of a stage, and the bytes at the end of the notes in which the newest is."""
STAGES = {
    "oad model ": "loading the model",
    "Loading model from scratch": "loading the model",
    "for vLLM's torch.compile": "compiling",
    "Warming up model for the compilation": "compiling",
    "KV cache size:": "warming up and capturing graphs",
}
"""Words of vLLM's messages -> the stage that begins with them."""


class _Notes(logging.Handler):
    def __init__(self, path: str) -> None:
        super().__init__(logging.INFO)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        error, message = record.exc_info[1] if record.exc_info else None, record.getMessage()
        if error is not None and message.startswith(FATAL):
            self._write(root_cause("".join(traceback.format_exception(error))))
        for words in (words for words in STAGES if words in message):
            self._write(STAGE + STAGES[words])

    def _write(self, text: str) -> None:
        with suppress(OSError), open(self._path, "a", encoding="utf-8") as notes:  # the parent may be gone
            notes.write(text + "\n")


def note_failures() -> None:
    """In a vLLM process: write stages and fatal errors to the parent's file from now on."""
    log, path = logging.getLogger("vllm"), os.environ.get(ENV)
    if path is not None and not any(isinstance(handler, _Notes) for handler in log.handlers):
        log.addHandler(_Notes(path))


def stage_now() -> str:
    """What the engine does that this process starts, by the end of its notes."""
    with suppress(KeyError, OSError), open(os.environ[ENV], "rb") as notes:
        notes.seek(max(0, notes.seek(0, os.SEEK_END) - TAIL))
        lines = notes.read().decode(errors="replace").splitlines()
        if stages := [line for line in lines if line.startswith(STAGE)]:
            return stages[-1].removeprefix(STAGE).strip()
    return "importing vLLM"


class FailureNotes:
    """In the parent: collects errors of the engine that is started next."""

    def __init__(self) -> None:
        self._file = open(os.memfd_create("hora-engine-notes", os.MFD_CLOEXEC), "rb")  # noqa: SIM115
        os.environ[ENV] = path_of(self._file.fileno())

    def reason(self) -> str | None:
        """The newest fatal error of a process; None if it was killed."""
        text = os.pread(self._file.fileno(), 2**20, 0).decode(errors="replace")
        lines = [line for line in text.splitlines() if ELSEWHERE not in line and not line.startswith(STAGE)]
        return lines[-1] if lines else None


@contextmanager
def ended_when_still(still_s: float) -> Iterator[None]:
    """During the block, kill the processes that this one started by multiprocessing once all of them used no
    processor time for `still_s`: an engine that loads, compiles or polls uses some. vLLM then raises."""

    def watch(over: threading.Event) -> None:
        before: dict[int, float] = {}
        while not over.wait(still_s):
            now = dict(_seconds())
            if now and now == before:
                for child in multiprocessing.active_children():
                    child.kill()
            before = now

    with background_thread("still", watch):
        yield


def _seconds() -> Iterator[tuple[int, float]]:
    """Processor seconds of each child and its descendants, by process id."""
    for child in multiprocessing.active_children():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(child.pid)
            for each in (process, *process.children(recursive=True)):
                times = each.cpu_times()
                yield each.pid, times.user + times.system


class Progress:
    """`still_s`: seconds without a token while requests are open, else 0. `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open = 0
        self._moved_at = clock()

    @contextmanager
    def request(self) -> Iterator[None]:
        if not self._open:
            self.moved()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def moved(self) -> None:
        """Restart the clock: a sequence got a token, or decoding can only start now."""
        self._moved_at = self._clock()

    @property
    def still_s(self) -> float:
        return self._clock() - self._moved_at if self._open else 0.0
