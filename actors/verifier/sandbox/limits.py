"""What a program may use, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["ok", "error", "time", "wall", "output"]

WALL = 3.0
"""Seconds by the clock for each second of processor time: what a busy machine may take away, and no more, for
a program that sleeps holds its place."""
WALL_START_S = 2.0
"""Seconds by the clock on top, for a start on a busy machine."""


@dataclass(frozen=True)
class Limits:
    """`seconds` of processor time; `memory` is the whole address space in bytes, the interpreter's 30 MiB
    included; `output` bounds stdout and stderr each (bytes); `files` are open descriptors."""

    seconds: float = 4.0
    memory: int = 512 << 20
    output: int = 1 << 20
    files: int = 64
    threads: int = 32

    @property
    def wall(self) -> float:
        """Seconds by the clock."""
        return WALL * self.seconds + WALL_START_S


@dataclass(frozen=True)
class Outcome:
    """How one program ended.

    `ok`: exit status 0. `error`: another status, or a signal (negative, as in `subprocess`). `time`: over its
    processor time. `wall`: over its time by the clock, which a busy machine may be to blame for. `output`: it
    filled stdout or stderr.
    """

    kind: Kind
    status: int
    out: bytes
    err: bytes
    cpu_s: float
    wall_s: float
