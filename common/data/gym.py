"""Rows of a `reasoning-gym` task: `data.path: reasoning_gym:TASK`, with `data.settings`, drawn in a process
(`gym_process.py`). The split is a function of the question's text, so no seed, setting or size moves a
held-out question into training."""

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hora_rl.common.data import gym_process
from hora_rl.common.data.arithmetic import Split
from hora_rl.common.errors import ConfigError

PREFIX = "reasoning_gym:"
TASK = "reasoning_gym"
"""Column with the task and its settings: a row that has it is judged by the task's scorer."""
ROWS: Mapping[Split, int] = {"train": 1000, "held-out": 250}
WALL = 10
"""Wall-clock seconds per second of processor time."""
PINNED = "reasoning-gym==0.1.25"
Entry = dict[str, Any]


def packages() -> str | None:
    """The folder in which the library is installed; None without it."""
    spec = importlib.util.find_spec("reasoning_gym")
    return str(Path(spec.origin).parent.parent) if spec and spec.origin else None


def entries(path: str, settings: Mapping[str, Any], split: Split, limit: int | None) -> tuple[Entry, ...]:
    """The first `limit` rows of one split with different questions, as generated, and the column `TASK`.
    Without a limit up to `ROWS`, or fewer if the task has no more.

    Determined by the arguments. Raises ConfigError."""
    return _entries(path, json.dumps(dict(settings), sort_keys=True, default=str), split, limit)


@lru_cache(maxsize=8)  # `hora check` asks for the same rows several times
def _entries(path: str, settings: str, split: Split, limit: int | None) -> tuple[Entry, ...]:
    task, chosen, wanted = path.removeprefix(PREFIX), json.loads(settings), limit or ROWS[split]
    answer = _generated(path, {"task": task, "settings": chosen, "split": split, "wanted": wanted})
    if "refused" in answer:
        raise ConfigError(f"{path}: {answer['refused']} (data.path, data.settings)")
    rows: list[Entry] = answer["rows"]
    if not rows or (limit and len(rows) < limit):
        raise ConfigError(
            f"{path}: {len(rows)} different questions on the {split} side, of {answer['questions']} in all, "
            f"and {wanted} are asked for: ask for fewer (data.limit, evaluation.prompts), or change "
            "data.settings"
        )
    return tuple({**row, TASK: {"task": task, "settings": chosen}} for row in rows)


def _generated(path: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of the process, which ends within WALL·SECONDS."""
    if packages() is None:
        raise ConfigError(f"{path}: reasoning-gym is not installed: `make setup`, or pip install {PINNED}")
    command, environment = [sys.executable, "-P", gym_process.__file__], {**os.environ, "PYTHONHASHSEED": "0"}
    limit_s, question = WALL * gym_process.SECONDS, json.dumps(request).encode()
    try:
        done = subprocess.run(
            command, input=question, capture_output=True, env=environment, timeout=limit_s, check=True
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as ended:
        lines = (ended.stderr or b"").decode(errors="replace").strip().splitlines()
        last = f" ({lines[-1][:200]})" if lines else ""
        raise ConfigError(
            f"{path}: its process ended before it had made {request['wanted']} rows{last}; it has "
            f"{gym_process.SECONDS} s of processor time and {gym_process.MEMORY >> 30} GiB: lower "
            "data.limit or evaluation.prompts, or make smaller problems (data.settings)"
        ) from None
    answer: dict[str, Any] = pickle.loads(done.stdout)  # from our child process
    return answer
