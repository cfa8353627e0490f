"""What the checks of `hora doctor` return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `mend` says what to do about it; it is empty where `level` is ok."""

    level: Literal["ok", "warn", "fail"]
    what: str
    says: str
    mend: str = ""


def ok(what: str, says: str) -> Finding:
    return Finding("ok", what, says)


def warn(what: str, says: str, mend: str) -> Finding:
    return Finding("warn", what, says, mend)


def fail(what: str, says: str, mend: str) -> Finding:
    return Finding("fail", what, says, mend)
