"""Rows of a `reasoning-gym` task: `data.path: reasoning_gym:TASK`, with `data.settings`.

Rows are drawn from an endless stream (`gym_process.py`); repeated questions are dropped. The split is a
function of the question's text, so no seed, setting or size moves a held-out question into training."""

import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from typing import IO, Any

from hora_rl.common.data import gym_process
from hora_rl.common.data.arithmetic import Split, split_of_text
from hora_rl.common.errors import ConfigError

PREFIX = "reasoning_gym:"
TASK = "reasoning_gym"
"""Column with the task and its settings: a row that has it is judged by the task's scorer."""
ROWS: Mapping[Split, int] = {"train": 1000, "held-out": 250}
DRY = 500
"""A task is exhausted after this many draws without a new question."""
WALL = 10
"""Wall-clock seconds per second of processor time."""
PINNED = "reasoning-gym==0.1.25"
Entry = dict[str, Any]


def packages() -> str | None:
    """The folder in which the library is installed; None without it."""
    spec = importlib.util.find_spec("reasoning_gym")
    return str(Path(spec.origin).parent.parent) if spec and spec.origin else None


def normalised(question: str) -> str:
    """The text by which questions are compared."""
    text = unicodedata.normalize("NFKC", question).casefold()
    return re.sub(r"\s+", "", text).strip(".,:;?!")


def entries(path: str, settings: Mapping[str, Any], split: Split, limit: int | None) -> tuple[Entry, ...]:
    """The first `limit` rows of one split with different questions, as generated, and the column `TASK`.
    Without a limit up to `ROWS`, or fewer if the task has no more.

    Determined by the arguments. Raises ConfigError."""
    return _entries(path, json.dumps(dict(settings), sort_keys=True, default=str), split, limit)


@lru_cache(maxsize=8)  # `hora check` asks for the same rows several times
def _entries(path: str, settings: str, split: Split, limit: int | None) -> tuple[Entry, ...]:
    task, chosen = path.removeprefix(PREFIX), json.loads(settings)
    wanted, seen, since, rows = limit or ROWS[split], set[str](), 0, list[Entry]()
    with _messages(path, task, chosen, wanted) as messages:
        for kind, content in messages:
            if kind == "refused":
                raise ConfigError(f"{path}: {content} (data.path, data.settings)")
            new = kind == "row" and content["question"] not in seen
            since = 0 if new else since + 1
            if new:
                seen.add(content["question"])
                if split_of_text(normalised(content["question"])) == split:
                    rows.append({**content, TASK: {"task": task, "settings": chosen}})
            if len(rows) == wanted or since == DRY:
                break
    if not seen:
        raise ConfigError(f"{path}: none of {DRY} rows could be made: {content}")
    if not rows or (limit and len(rows) < limit):
        raise ConfigError(
            f"{path}: {len(rows)} different questions on the {split} side, of {len(seen)} in all, and "
            f"{wanted} are asked for: ask for fewer (data.limit, evaluation.prompts), or change data.settings"
        )
    return tuple(rows)


@contextmanager
def _messages(
    path: str, task: str, settings: Mapping[str, Any], wanted: int
) -> Iterator[Iterator[tuple[str, Any]]]:
    """The messages of the process, which is killed at the end of the block or after WALL·SECONDS."""
    if packages() is None:
        raise ConfigError(f"{path}: reasoning-gym is not installed: `make setup`, or pip install {PINNED}")
    command, environment = [sys.executable, "-P", gym_process.__file__], {**os.environ, "PYTHONHASHSEED": "0"}
    pipe = subprocess.PIPE
    with (
        TemporaryFile() as complaints,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=complaints, env=environment) as process,
        ExitStack() as end,
    ):
        assert process.stdin is not None
        end.callback(process.kill)
        clock = Timer(WALL * gym_process.SECONDS, process.kill)
        clock.daemon = True
        end.callback(clock.cancel)
        clock.start()
        with suppress(BrokenPipeError), process.stdin as stdin:  # the process ended; its messages say why
            stdin.write(json.dumps({"task": task, "settings": settings}).encode())
        try:
            yield _read(process.stdout)
        except (EOFError, pickle.UnpicklingError):
            last = _last_line(complaints)
            raise ConfigError(
                f"{path}: its process ended before it had made {wanted} rows{last}; it has "
                f"{gym_process.SECONDS} s of processor time and {gym_process.MEMORY >> 30} GiB: lower "
                "data.limit or evaluation.prompts, or make smaller problems (data.settings)"
            ) from None


def _read(stdout: IO[bytes] | None) -> Iterator[tuple[str, Any]]:
    while stdout is not None:
        yield pickle.load(stdout)  # from our child process


def _last_line(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    return f" ({lines[-1][:200]})" if lines else ""
