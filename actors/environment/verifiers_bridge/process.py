"""Runs an unmodified environment of the library `verifiers`.

The library pins other versions of packages that vLLM needs, so it needs a separate Python
(`environment.verifiers.python`). One process of that Python (`worker.py`) runs all episodes of a replica. The
process sees only text. Sampled tokens stay here, in the episode's conversation.
"""

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from hora_rl.actors.environment.protocol import Episode, EpisodeOver, Speaker, Tools
from hora_rl.common.config.environment import VerifiersConfig
from hora_rl.common.data.rows import Row
from hora_rl.common.errors import ConfigError, EnvironmentFault

log = structlog.get_logger(__name__)
WORKER = Path(__file__).with_name("worker.py")
LONGEST_LINE = 1 << 24
START_S = 120.0
TASK = "task"
"""Column with the number of a row's task in the task set."""
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "HF_HOME", "HF_HUB_OFFLINE")
"""Environment variables passed to the process. The rest may hold the run's secrets."""
PINNED = "0.4.0"
Line = dict[str, Any]


class VerifiersEnvironment:
    """Episodes of `environment.verifiers`. `start()` starts the process, `close()` ends it."""

    def __init__(self, named: VerifiersConfig | None, run: str) -> None:
        self._named, self._run = named, run
        self._process: Process | None = None
        self._starting = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._heard: dict[int, asyncio.Queue[Line]] = {}
        self._numbers = count()

    async def start(self) -> None:
        """Start the process. Raises ConfigError if the Python, library or environment is missing."""
        async with self._starting:
            if self._process is None:
                self._process = await self._started()

    async def episode(self, row: Row, policy: Speaker, sandbox: Tools) -> Episode:
        """One episode of the row's task. Rewards: the rubric's by name, and their weighted sum `reward`."""
        over = False
        async with self._begun(task_of(row)) as (number, lines):
            while True:
                line = await lines.get()
                if "rewards" in line:
                    return Episode(line["rewards"])
                if "fault" in line:  # also at a limit
                    raise EpisodeOver(line["fault"]) if over else EnvironmentFault(line["fault"])
                try:
                    turn = await policy.reply(line["ask"])
                    answer = {"said": turn.text, "tokens": len(turn.tokens), "finish": turn.finish_reason}
                    self._say({"id": number, **answer})
                except EpisodeOver:
                    over = True
                    self._say({"id": number, "over": True})

    async def opening(self, task: int) -> list[dict[str, str]] | None:
        """Opening messages of `task`; None without such a task. Raises ConfigError with the reason."""
        async with self._begun(task) as (_, lines):
            line = await lines.get()
        if "ask" in line:
            messages: list[dict[str, str]] = line["ask"]
            return messages
        if str(line.get("fault")).startswith("has no task"):
            return None
        raise ConfigError(f"environment.verifiers: task {task}: the environment {line.get('fault', line)}")

    @asynccontextmanager
    async def _begun(self, task: int) -> AsyncIterator[tuple[int, asyncio.Queue[Line]]]:
        """An episode of `task`: its number, and the lines about it. It ends with the block."""
        await self.start()
        number, lines = next(self._numbers), asyncio.Queue[Line]()
        self._heard[number] = lines
        try:
            self._say({"id": number, "task": task})
            yield number, lines
        finally:
            del self._heard[number]
            self._say({"id": number, "cancel": True})

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self._process is not None:
            await _ended(self._process)

    async def _started(self) -> Process:
        named = self._named
        assert named is not None
        request = {"model": self._run, "taskset": named.taskset, "env": named.env, "config": named.config}
        try:
            process = await asyncio.create_subprocess_exec(
                named.python, str(WORKER), json.dumps(request), env=_variables(named.variables),
                stdin=PIPE, stdout=PIPE, limit=LONGEST_LINE,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"environment.verifiers.python ({named.python}): {error.strerror}") from None
        assert process.stdout is not None
        async with AsyncExitStack() as otherwise:  # also if the episode that waits is cancelled
            otherwise.push_async_callback(_ended, process)
            try:
                async with asyncio.timeout(START_S):
                    first = await process.stdout.readline()
            except TimeoutError:
                late = f"environment.verifiers: {named.taskset} was not loaded in {START_S:g} s"
                raise ConfigError(late) from None
            _loaded(first, named.python, named.taskset)
            otherwise.pop_all()
        self._reading = asyncio.get_running_loop().create_task(self._read(process))
        return process

    async def _read(self, process: Process) -> None:
        """Pass each line to its episode. When the process ends, all episodes fail."""
        assert process.stdout is not None
        try:
            while (text := await process.stdout.readline()).endswith(b"\n"):  # or it was killed within a line
                line = json.loads(text)
                if (queue := self._heard.get(line["id"])) is not None:
                    queue.put_nowait(line)
        except ValueError:  # a line that is too long, or none of the worker's
            if process.returncode is None:
                process.kill()
        status, self._process = await process.wait(), None
        log.error("the process of verifiers ended", status=status, episodes=len(self._heard))
        for queue in self._heard.values():
            queue.put_nowait({"fault": f"ended: its process, with status {status}"})

    def _say(self, line: Line) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()


def task_of(row: Row) -> int:
    """Number of the row's task. Raises EnvironmentFault if missing."""
    number = row.columns.get(TASK)
    if type(number) is not int or number < 0:
        raise EnvironmentFault(
            f"needs rows with a column {TASK!r}, a task's number, and prompt {row.index} has {number!r:.60}: "
            "`python -m hora_rl.deploy.verifiers_rows CONFIG` writes them"
        )
    return number


def _loaded(line: bytes, python: str, taskset: str) -> None:
    """Raise ConfigError if the process did not load its environment or has another version."""
    first: Line = {}
    with suppress(ValueError):
        first = json.loads(line)
    if "failed" in first:
        raise ConfigError(f"environment.verifiers: cannot load {taskset!r}: {first['failed']}")
    if first.get("ready") != PINNED:
        raise ConfigError(
            f"environment.verifiers.python ({python}) has no verifiers {PINNED}: install "
            "requirements/verifiers.txt into a virtual environment of its own and name its python"
        )


def _variables(more: tuple[str, ...]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in (*KEPT, *more) if name in os.environ}
    # Modules in the working directory can be imported, as for user-defined environments.
    paths = [path for path in (kept.get("PYTHONPATH"), os.getcwd()) if path]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
