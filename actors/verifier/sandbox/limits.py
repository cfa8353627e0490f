"""Resource limits of a program, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["ok", "error", "time", "wall", "output"]

WALL = 3.0
"""Wall-clock seconds per second of processor time. Large enough for a busy machine, but small because a
sleeping program occupies a sandbox."""
WALL_START_S = 2.0
"""Additional wall-clock seconds for the start on a busy machine."""


@dataclass(frozen=True)
class Limits:
    """`seconds` of processor time; `memory`, the address space in bytes, including 30 MiB for the
    interpreter; `output`, the bytes of stdout and of stderr; `files`, open descriptors."""

    seconds: float = 4.0
    memory: int = 512 << 20
    output: int = 1 << 20
    files: int = 64
    threads: int = 32

    @property
    def wall(self) -> float:
        """Wall-clock limit in seconds."""
        return WALL * self.seconds + WALL_START_S


@dataclass(frozen=True)
class Outcome:
    """How one program ended.

    `ok`: exit status 0. `error`: another status, or a signal (negative, as in `subprocess`). `time`: exceeded
    its processor time. `wall`: exceeded its wall-clock time, perhaps because the machine was busy. `output`:
    filled stdout or stderr.
    """

    kind: Kind
    status: int
    out: bytes
    err: bytes
    cpu_s: float
    wall_s: float
