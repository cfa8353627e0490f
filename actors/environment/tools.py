"""The verifier's sandbox, for programs that the policy writes in an episode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from queue import LifoQueue

from hora_rl.actors.environment.policy import Policy
from hora_rl.actors.environment.protocol import Tools
from hora_rl.actors.verifier.sandbox.limits import Limits, Outcome
from hora_rl.actors.verifier.sandbox.sandbox import Sandbox, SandboxLost

MOST_CHARS = 2_000
"""Characters of a program's output that the policy reads. Longer output is truncated with a notice."""
TRIES = 3
LIMITS = Limits(seconds=4.0, output=1 << 16)
ENDED = {
    "time": "stopped: over its time",
    "wall": "stopped: over its time",
    "output": "stopped: it printed too much",
}


class SandboxTools:
    """`Tools` of one replica: at most `slots` programs at a time, each in a separate sandbox that is created
    on first use. Use from one event loop; `close()` ends the sandboxes."""

    def __init__(self, slots: int) -> None:
        self._threads = ThreadPoolExecutor(slots, "sandbox")
        self._idle: LifoQueue[Sandbox] = LifoQueue()

    async def python(self, source: str, stdin: str = "") -> str:
        loop = asyncio.get_running_loop()
        return _told(await loop.run_in_executor(self._threads, self._run, source, stdin.encode()))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().close()

    def _run(self, source: str, stdin: bytes) -> Outcome:
        """Raises SandboxLost after repeated failures of the sandbox, and SandboxError where none can be
        created."""
        for left in reversed(range(TRIES)):
            try:
                with self._one() as box:
                    return box.run(source, stdin, LIMITS)
            except SandboxLost:
                if not left:
                    raise
        raise AssertionError("unreachable")

    @contextmanager
    def _one(self) -> Iterator[Sandbox]:
        """An idle sandbox, or a new one; a sandbox that failed is not used again."""
        box = Sandbox() if self._idle.empty() else self._idle.get()
        with ExitStack() as failed:
            failed.callback(box.close)
            yield box
            failed.pop_all()
        self._idle.put(box)


class EpisodeTools:
    """The `Tools` of one episode: while its program waits for a sandbox and runs there, which has limits of
    its own, the time is not the environment's."""

    def __init__(self, tools: Tools, policy: Policy) -> None:
        self._tools, self._policy = tools, policy

    async def python(self, source: str, stdin: str = "") -> str:
        with self._policy.waiting():
            return await self._tools.python(source, stdin)


def _told(outcome: Outcome) -> str:
    """What the policy reads about a program."""
    printed = outcome.out.decode(errors="replace")
    if len(printed) > MOST_CHARS:
        printed = f"{printed[:MOST_CHARS]}\n(cut)"
    if outcome.kind == "ok":
        return printed.rstrip("\n")
    lines = outcome.err.decode(errors="replace").strip().splitlines()
    why = ENDED.get(outcome.kind) or (lines[-1][:300] if lines else f"exit status {outcome.status}")
    return f"{printed}{why}"
