"""Runs programs that the policy writes in an episode, in the verifier's sandbox."""

from contextlib import suppress

from hora_rl.actors.environment.policy import Policy
from hora_rl.actors.environment.protocol import Tools
from hora_rl.actors.verifier.sandbox.pool import SandboxPool
from hora_rl.actors.verifier.sandbox.sandbox import Limits, Outcome, Sandbox
from hora_rl.common.errors import VerifierUnavailable

MOST_CHARS = 2_000
"""Maximum characters of output shown to the policy. Longer output is truncated with a notice."""
TRIES = 3
LIMITS = Limits(seconds=4.0, output=1 << 16)
ENDED = {
    "time": "stopped: over its time",
    "wall": "stopped: over its time",
    "output": "stopped: it printed too much",
}


class SandboxTools:
    """`Tools` of one replica. Runs at most `slots` programs at a time, in separate sandboxes created on first
    use. Use from one event loop; `close()` ends the sandboxes."""

    def __init__(self, slots: int) -> None:
        self._boxes = SandboxPool(Sandbox, slots)

    async def python(self, source: str, stdin: str = "") -> str:
        """Raises VerifierUnavailable after repeated failures of the sandbox, and SandboxError where none can
        be created."""
        for _ in range(TRIES - 1):
            with suppress(VerifierUnavailable):
                return await self._run(source, stdin)
        return await self._run(source, stdin)

    def close(self) -> None:
        self._boxes.close()

    async def _run(self, source: str, stdin: str) -> str:
        return _told(await self._boxes.use(lambda box: box.run(source, stdin.encode(), LIMITS)))


class EpisodeTools:
    """The `Tools` of one episode. Time spent in the sandbox, which has separate limits, does not count as the
    environment's."""

    def __init__(self, tools: Tools, policy: Policy) -> None:
        self._tools, self._policy = tools, policy

    async def python(self, source: str, stdin: str = "") -> str:
        with self._policy.waiting():
            return await self._tools.python(source, stdin)


def _told(outcome: Outcome) -> str:
    """The message to the policy about a program."""
    printed = outcome.out.decode(errors="replace")
    if len(printed) > MOST_CHARS:
        printed = f"{printed[:MOST_CHARS]}\n(cut)"
    if outcome.kind == "ok":
        return printed.rstrip("\n")
    lines = outcome.err.decode(errors="replace").strip().splitlines()
    why = ENDED.get(outcome.kind) or (lines[-1][:300] if lines else f"exit status {outcome.status}")
    return f"{printed}{why}"
