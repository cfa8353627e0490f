"""Samples n episodes of a prompt. Retries an episode if its environment fails."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from hora_rl.actors.concurrency import all_of
from hora_rl.actors.coordinator.sampling import Generate
from hora_rl.actors.environment.conversation import Conversation
from hora_rl.actors.environment.episode_runner import run_episode
from hora_rl.actors.environment.policy import Policy, Sample
from hora_rl.actors.environment.protocol import EpisodeFunction, Tools
from hora_rl.actors.environment.template import Template
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import opening
from hora_rl.common.data.rows import Row
from hora_rl.common.errors import EnvironmentFault, HoraError, RunError
from hora_rl.common.types import Completion, Failed, Prompt, SamplingRequest, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = structlog.get_logger(__name__)
Count = Callable[[str, int], None]
Turns = Callable[[int, str], Generate]
"""(minimum weight version, episode name) -> `generate` for single turns."""


class Episodes:
    """Runs `function` on the prompts' rows. Reports to `count(name, n)`: complete episodes (`episodes`),
    truncated ones (`episodes_cut`), failed ones (`episodes_lost:KIND`), and turns (`episode_turns`)."""

    def __init__(
        self,
        config: Config,
        tokenizer: PreTrainedTokenizerBase,
        function: EpisodeFunction,
        tools: Tools,
        count: Count,
    ) -> None:
        self._config, self._function, self._tools, self._count = config, function, tools, count
        self._templates = {name: Template(tokenizer, config.of(name).data) for name in config.source_names}
        self._places = asyncio.Semaphore(config.environment.episodes)
        self.running = 0

    async def make(self, request: SamplingRequest, version: int, turns: Turns) -> list[Completion] | Failed:
        """`request.n` episodes on weights of version `version` or newer. Raises the errors of `turns`, except
        that a HoraError is returned as Failed, because a retry would not help."""
        try:
            return await all_of(self._until_made(request, i, version, turns) for i in range(request.n))
        except HoraError as error:
            return Failed(str(error))

    async def _until_made(
        self, request: SamplingRequest, number: int, version: int, turns: Turns
    ) -> Completion:
        """Episode `number` of a request. Its seed is the request's seed plus this number, so episodes do not
        depend on how they are split into requests. Retries use new seeds. Raises RunError after
        environment.attempts tries."""
        prompt, attempts = request.prompt, self._config.environment.attempts
        for attempt in range(attempts):
            sample = _sample(request, f"{request.seed + number}:{attempt}", turns)
            try:
                async with self._places:
                    return await self._one(prompt, sample, version)
            except EnvironmentFault as fault:
                self._count(f"episodes_lost:{fault.kind}", 1)
                said = f"the environment {fault}"
                log.warning(
                    "an episode is sampled again", prompt=prompt.index, attempt=attempt + 1, reason=said
                )
        raise RunError(
            f"environment {self._config.environment.path} made no episode of prompt {prompt.index} (problem "
            f"{prompt.text!r:.60}) in {attempts} tries (environment.attempts); last: {said}"
        )

    async def _one(self, prompt: Prompt, sample: Sample, version: int) -> Completion:
        own = self._config.of(prompt.source)
        messages = opening(prompt.text, own.data, prompt.messages)
        template = self._templates[prompt.source]
        conversation = Conversation(template, messages, prompt.tokens, own.environment.history)
        policy = Policy(conversation, sample, own, version)
        row = Row(prompt.index, prompt.text, prompt.answer, prompt.row, prompt.messages)
        self.running += 1
        try:
            made = await run_episode(self._function, row, policy, self._tools)
        finally:
            self.running -= 1
        self._count("episodes", 1)
        self._count("episodes_cut", int(policy.over))
        self._count("episode_turns", conversation.turns)
        return made


def _sample(request: SamplingRequest, name: str, turns: Turns) -> Sample:
    """Samples turns of the episode `name`. The seed of a turn is a pure function of episode and turn, so a
    retry with the same weights samples the same tokens."""
    turn = 0

    async def sample(context: Tokens, most: int, version: int) -> Completion:
        nonlocal turn
        turn += 1
        digest = hashlib.blake2b(f"{name}:{turn}".encode(), digest_size=6).digest()
        single = replace(
            request,
            prompt=replace(request.prompt, tokens=context, row={}, messages=()),
            n=1,
            seed=int.from_bytes(digest, "big"),
            max_tokens=most,
        )
        (answer,) = await turns(version, name)(single)
        return answer

    return sample
