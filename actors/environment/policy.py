"""What an environment gets: the policy, as turns of one conversation within the limits of `environment`, and
the verifier's sandbox for programs that the policy writes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from hora_rl.actors.environment.conversation import Conversation, Message
from hora_rl.actors.environment.protocol import EpisodeOver, Reply, Tools
from hora_rl.actors.verifier.sandbox.pool import SandboxPool
from hora_rl.actors.verifier.sandbox.sandbox import Limits, Sandbox
from hora_rl.common.config import Config
from hora_rl.common.errors import EnvironmentFault, VerifierUnavailable
from hora_rl.common.types import Completion, Tokens

Sample = Callable[[Tokens, int, int], Awaitable[Completion]]
"""(context (T,), maximum tokens, minimum weight version) -> one turn."""
MOST_CHARS = 2_000
"""Maximum characters of output shown to the policy. Longer output is truncated with a notice."""
TRIES = 3
LIMITS = Limits(seconds=4.0, output=1 << 16)
ENDED = {
    "time": "stopped: over its time",
    "wall": "stopped: over its time",
    "output": "stopped: it printed too much",
}


class Policy:
    """The `Speaker` of one episode. `own_s`: seconds of the environment, without turns and programs."""

    def __init__(self, conversation: Conversation, sample: Sample, config: Config, min_version: int) -> None:
        self.conversation, self._sample, self.config = conversation, sample, config
        self._version = min_version
        self._prompt = len(conversation.context(()))
        self._busy = self._closed = False
        self._waits = 0
        self._own_s, self._since = 0.0, time.monotonic()
        self.over = False
        """Whether a limit was reached."""
        self._turn: asyncio.Future[Completion] | None = None
        """The newest turn, running or complete."""

    @property
    def own_s(self) -> float:
        return self._own_s if self._waits else self._own_s + time.monotonic() - self._since

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Do not count the time of this block as the environment's. The block has separate time limits."""
        self._own_s, self._waits = self.own_s, self._waits + 1
        try:
            yield
        finally:
            self._waits -= 1
            self._since = time.monotonic()

    @property
    def lost(self) -> BaseException | None:
        """The error of a turn that could not be sampled; never the environment's fault."""
        turn = self._turn
        return turn.exception() if turn is not None and turn.done() and not turn.cancelled() else None

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.conversation.messages

    @property
    def turns_left(self) -> int:
        return max(0, self.config.environment.max_turns - self.conversation.turns)

    async def reply(self, messages: Sequence[Message]) -> Reply:
        return await self.generate(*self.conversation.rest(messages))

    async def generate(self, *new: Message) -> Reply:
        if self._closed:
            raise EnvironmentFault("asks for a turn after its end")
        if self._busy:
            raise EnvironmentFault("asks for two turns at a time")
        if self.lost is not None:
            raise self.lost
        context = self.conversation.context(new)
        most = self._room(len(context))
        self._busy = True
        self._turn = asyncio.ensure_future(self._sample(context, most, self._version))
        try:
            with self.waiting():
                answer = await self._turn
        finally:
            self._busy = False
        if self._closed:
            raise EnvironmentFault("asks for a turn after its end")
        self.conversation.append(new, context, answer)
        # A later turn must not come from older weights.
        self._version = max(self._version, answer.spans[-1].version)
        return Reply(answer.text, answer.tokens, answer.finish_reason)

    def close(self) -> None:
        self._closed = True

    def _room(self, length: int) -> int:
        """Token limit of a turn after a context of `length` tokens. Raises EpisodeOver at a limit."""
        environment, conversation = self.config.environment, self.conversation
        left = self.config.rollout.max_response_tokens - conversation.sampled
        between = length - self._prompt - conversation.sampled
        fits = self.config.longest - length
        self.over = self.over or (
            self.turns_left == 0 or left <= 0 or between > environment.max_given_tokens or fits <= 0
        )
        if self.over:
            raise EpisodeOver(
                f"after {conversation.turns} turns, {conversation.sampled} sampled tokens and {between} given"
            )
        return min(left, fits, environment.max_turn_tokens or left)


class SandboxTools:
    """`Tools` of one replica. Runs at most `slots` programs at a time, in separate sandboxes created on first
    use. Use from one event loop; `close()` ends the sandboxes."""

    def __init__(self, slots: int) -> None:
        self._boxes = SandboxPool(Sandbox, slots)

    async def python(self, source: str, stdin: str = "") -> str:
        """Raises VerifierUnavailable if the sandbox keeps failing, SandboxError where there is none."""
        for _ in range(TRIES - 1):
            with suppress(VerifierUnavailable):
                return await self._run(source, stdin)
        return await self._run(source, stdin)

    def close(self) -> None:
        self._boxes.close()

    async def _run(self, source: str, stdin: str) -> str:
        outcome = await self._boxes.use(lambda box: box.run(source, stdin.encode(), LIMITS))
        printed = outcome.out.decode(errors="replace")
        if len(printed) > MOST_CHARS:
            printed = f"{printed[:MOST_CHARS]}\n(cut)"
        if outcome.kind == "ok":
            return printed.rstrip("\n")
        lines = outcome.err.decode(errors="replace").strip().splitlines()
        why = ENDED.get(outcome.kind) or (lines[-1][:300] if lines else f"exit status {outcome.status}")
        return f"{printed}{why}"


class EpisodeTools:
    """The `Tools` of one episode. Time in the sandbox, which has own limits, is not the environment's."""

    def __init__(self, tools: Tools, policy: Policy) -> None:
        self._tools, self._policy = tools, policy

    async def python(self, source: str, stdin: str = "") -> str:
        with self._policy.waiting():
            return await self._tools.python(source, stdin)
