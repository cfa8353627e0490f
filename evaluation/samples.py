"""The sample file of an evaluation: one JSON line per sample, append-only, safe to interrupt at any byte.

The first line identifies the samples (`about`, and a fingerprint of the problems). Both must match to
continue a file, so samples of two models are never mixed. A torn last line is cut off.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hora_rl.common.errors import ConfigError
from hora_rl.common.types import Prompt

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample number `sample` (from 0) of the problem with index `problem`. `length` in tokens."""

    problem: int
    sample: int
    seed: int
    text: str
    length: int
    finish_reason: str
    versions: tuple[int, int]
    rewards: dict[str, float]
    success: bool


def fingerprint(problems: Sequence[Prompt]) -> str:
    """Fingerprint (16 hex digits) of the problems with tokens and gold answers."""
    digest = hashlib.blake2b(digest_size=8)
    for p in problems:
        content = json.dumps([p.index, p.text, p.judged_by, p.tokens.tolist()], default=str)
        digest.update(content.encode())
    return digest.hexdigest()


def open_samples(path: Path, about: Mapping[str, object], problems: Sequence[Prompt]) -> Iterator[Sample]:
    """Prepare `path` for appending and yield its samples. A new file gets its first line. Raises ConfigError
    for other problems, another `about`, or damage before the last line."""
    header = {"about": dict(about), "problems": fingerprint(problems)}
    path.parent.mkdir(parents=True, exist_ok=True)
    cut_torn_line(path)
    if not path.exists() or path.stat().st_size == 0:
        append(path, [header])
        return
    with path.open(encoding="utf-8") as lines:
        _compare(path, next(lines), header)
    yield from read_samples(path)


def append(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    """Append lines and flush them to the operating system: a crash of this process loses none. Raises
    ConfigError if writing fails (no space, say); the file is then unchanged."""
    text = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
    before = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, before)
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}): what it holds is kept; make room, then repeat "
            "the command"
        ) from error


def cut_torn_line(path: Path) -> None:
    """Cut off a torn last line, reading only the end of a file that may have gigabytes."""
    if not path.exists():
        return
    with path.open("rb") as file:
        end = complete = file.seek(0, os.SEEK_END)
        while complete > 0:
            start = max(0, complete - CHUNK)
            file.seek(start)
            newline = file.read(complete - start).rfind(b"\n")
            complete = start + newline + 1
            if newline >= 0:
                break
    if complete < end:
        os.truncate(path, complete)


def _compare(path: Path, line: str, expected: Mapping[str, object]) -> None:
    """Raise ConfigError unless the first `line` of a file says what is `expected`."""
    try:
        old, new = (
            {"problems": h.get("problems"), **h["about"]}
            for h in map(json.loads, (line, json.dumps(expected)))
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"{path}: line 1 does not say what was sampled; choose another output folder"
        ) from None
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            raise ConfigError(
                f"{path}: was sampled with {key} = {old.get(key)!r}, now it is {new.get(key)!r}: choose "
                "another output folder, or delete the file to start again"
            )


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples of a file, in order. Raises OSError and ConfigError."""
    with path.open(encoding="utf-8") as lines:
        next(lines, None)
        for number, line in enumerate(lines, start=2):
            try:
                raw = json.loads(line)
                yield Sample(**{**raw, "versions": tuple(raw["versions"])})
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigError(
                    f"{path}:{number}: not a sample ({error}): delete this line and those after it to "
                    "continue"
                ) from error


def first_samples(path: Path) -> dict[int, Sample]:
    """Sample 0 of each problem by index. Raises OSError and ConfigError."""
    return {sample.problem: sample for sample in read_samples(path) if sample.sample == 0}


def newest_version(path: Path) -> int:
    """The newest weight version in a sample file, 0 if there is none."""
    newest = 0
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):
                newest = max(newest, int(json.loads(line)["versions"][1]))
    return newest
