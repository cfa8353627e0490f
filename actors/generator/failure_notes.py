"""Reports to the replica why its vLLM processes failed.

vLLM logs an error in the failing process; the parent only gets "see root cause above". So every engine
process also writes the error to an in-memory file of its parent.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from hora_rl.common.errors import HoraError
from hora_rl.common.weights.versions import path_of

ENV = "HORA_ENGINE_NOTES"
FATAL = ("EngineCore failed", "EngineCore encountered", "WorkerProc failed")
"""Prefixes of the last message of a failing vLLM process."""
ELSEWHERE = "root cause"
LONGEST = 500


class _Notes(logging.Handler):
    def __init__(self, path: str) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or not record.getMessage().startswith(FATAL):
            return
        kind = "" if isinstance(error, HoraError) else f"{type(error).__name__}: "
        text = " ".join(f"{kind}{error}".split())[:LONGEST]
        with suppress(OSError), open(self._path, "a", encoding="utf-8") as notes:  # the parent may be gone
            notes.write(text + "\n")


def note_failures() -> None:
    """In a vLLM process: write fatal errors to the parent's file from now on."""
    log, path = logging.getLogger("vllm"), os.environ.get(ENV)
    if path is not None and not any(isinstance(handler, _Notes) for handler in log.handlers):
        log.addHandler(_Notes(path))


class FailureNotes:
    """In the parent: collects errors of the engine that is started next."""

    def __init__(self) -> None:
        self._file = open(os.memfd_create("hora-engine-notes", os.MFD_CLOEXEC), "rb")  # noqa: SIM115
        os.environ[ENV] = path_of(self._file.fileno())

    def reason(self) -> str | None:
        """The newest fatal error of a process; None if it was killed."""
        text = os.pread(self._file.fileno(), 2**20, 0).decode(errors="replace")
        lines = [line for line in text.splitlines() if ELSEWHERE not in line]
        return lines[-1] if lines else None
