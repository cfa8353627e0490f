"""Samples n episodes of a prompt. Retries an episode if its environment fails.

An episode that reaches a limit of turns or tokens is valid. An episode fails if the environment raises,
hangs, changes the history, ends before the first turn or lacks a reward. A failed episode never counts as a
wrong answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from hora_rl.actors.concurrency import all_of
from hora_rl.actors.coordinator.sampling import Generate
from hora_rl.actors.environment.conversation import Conversation, Template
from hora_rl.actors.environment.policy import EpisodeTools, Policy, Sample
from hora_rl.actors.environment.protocol import Episode, EpisodeFunction, EpisodeOver, Tools
from hora_rl.common.config import Config
from hora_rl.common.config.environment import ATTEMPTS, EPISODES
from hora_rl.common.config.reward import EPISODE
from hora_rl.common.data.prompts import opening
from hora_rl.common.data.rows import Row
from hora_rl.common.errors import EnvironmentFault, HoraError, RunError, one_line
from hora_rl.common.types import Completion, Failed, Prompt, SamplingRequest, Tokens
from hora_rl.common.user_code import is_finite

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = structlog.get_logger(__name__)
Count = Callable[[str, int], None]
LOOK_S = 0.5
GRACE_S = 1.0
"""Seconds to wait for a cancelled environment to end."""
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
        self._places = asyncio.Semaphore(EPISODES)
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
        """Episode `number` of a request. Its seed is the request's plus this number, so episodes do not
        depend on how requests are cut. Retries use new seeds. Raises RunError after ATTEMPTS tries."""
        prompt = request.prompt
        for attempt in range(ATTEMPTS):
            sample = _sample(request, f"{request.seed + number}:{attempt}", turns)
            try:
                async with self._places:
                    return await self._one(prompt, sample, version)
            except EnvironmentFault as fault:
                self._count(f"episodes_lost:{fault.kind}", 1)
                reason = f"the environment {fault}"
                log.warning(
                    "an episode is sampled again", prompt=prompt.index, attempt=attempt + 1, reason=reason
                )
        raise RunError(
            f"environment {self._config.environment.path} made no episode of prompt {prompt.index} (problem "
            f"{prompt.text!r:.60}) in {ATTEMPTS} tries; last: {reason}"
        )

    async def _one(self, prompt: Prompt, sample: Sample, version: int) -> Completion:
        config = self._config.of(prompt.source)
        messages = opening(prompt.text, config.data, prompt.messages)
        template = self._templates[prompt.source]
        conversation = Conversation(template, messages, prompt.tokens, config.environment.history)
        policy = Policy(conversation, sample, config, version)
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


async def run_episode(function: EpisodeFunction, row: Row, policy: Policy, tools: Tools) -> Completion:
    """One episode on `row`. Raises EnvironmentFault, or the error of a turn that could not be sampled."""
    try:
        rewards = await _within_limit(_called(function, row, policy, EpisodeTools(tools, policy)), policy)
    finally:
        policy.close()
    if policy.lost is not None:  # the environment caught the error and continued
        raise policy.lost
    names = policy.config.reward.names
    wanted = [name.removeprefix(EPISODE) for name in names if name.startswith(EPISODE)]
    earned = dict.fromkeys(wanted, 0.0) if rewards is None else _checked(rewards, wanted)
    return policy.conversation.completion(earned, cut=policy.over)


async def _within_limit(
    episode: Coroutine[None, None, Mapping[str, float]], policy: Policy
) -> Mapping[str, float] | None:
    """Rewards of the episode; None if a limit ended the episode. Time spent sampling does not count."""
    task, limit_s = asyncio.ensure_future(episode), policy.config.environment.time_limit_s
    try:
        while not task.done():
            left = limit_s - policy.own_s
            if left <= 0:
                raise EnvironmentFault(f"hangs for more than {limit_s:g} s of its own")
            await asyncio.wait({task}, timeout=min(LOOK_S, left))
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
        if task.done() and not task.cancelled():
            task.exception()  # read once, also where this call is cancelled in the moment of the error
    if task.cancelled():  # it awaited something that was
        raise EnvironmentFault("raises CancelledError")
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, EpisodeOver):
        return None
    if policy.lost is not None:
        raise policy.lost from error
    if isinstance(error, EnvironmentFault):
        raise error
    raise EnvironmentFault(f"raises {type(error).__name__}: {one_line(error)}") from error


async def _called(function: EpisodeFunction, row: Row, policy: Policy, tools: Tools) -> Mapping[str, float]:
    ended = await function(row, policy, tools)
    if not isinstance(ended, Episode):
        raise EnvironmentFault(f"returns {type(ended).__name__}, not an Episode")
    if not isinstance(ended.rewards, Mapping):
        raise EnvironmentFault(f"returns {ended.rewards!r:.60} as rewards: they must be numbers by name")
    return ended.rewards


def _checked(rewards: Mapping[str, float], wanted: list[str]) -> dict[str, float]:
    """The `wanted` rewards. Raises EnvironmentFault if one is missing or not finite."""
    for name in wanted:
        value = rewards.get(name)
        if value is None:
            there = ", ".join(sorted(rewards)) or "none"
            raise EnvironmentFault(
                f"gives no reward {name!r}, which the configuration uses (it gives: {there})"
            )
        if not is_finite(value):
            raise EnvironmentFault(f"gives {value!r:.60} as reward {name!r}: it must be a finite number")
    return {name: float(rewards[name]) for name in wanted}
