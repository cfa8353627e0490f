"""Serve deployment `environment`: episodes of several turns, with the policy of the generator replicas.

It has replicas of its own, so that slow tools hold no generator. A replica that is lost takes its episodes
with it, and the coordinator asks for them again: nothing of an episode is kept before its end.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import structlog
from ray import serve
from ray.serve.handle import DeploymentHandle

from actors.calls import generator_calls
from actors.environment.conversation import Conversation
from actors.environment.policy import Policy, Sample
from actors.environment.registry import load_environment
from actors.environment.runner import run_episode
from actors.environment.template import Message, Template
from actors.environment.tools import SandboxTools
from common import logs
from common.config import Config
from common.datasets import Row
from common.errors import EnvironmentFault, HoraError
from common.prompts import load_tokenizer, opening
from common.redis import connect_async
from common.telemetry import Telemetry, keep_beating
from common.types import Completion, Failed, Prompt, SamplingRequest, Tokens

log = structlog.get_logger(__name__)
SANDBOXES = 4
SEED_STEP = 0x9E3779B97F4A7C15  # seeds of the turns of one episode, and of its next try, are far apart
SEEDS = 2**48


class Environment:
    """`config` is a dumped `Config`, `generator` the deployment that samples the policy's turns."""

    async def __init__(  # type: ignore[misc]
        self, config: dict[str, Any], redis_url: str, generator: DeploymentHandle
    ) -> None:
        self._config = Config.model_validate(config)
        run = self._config.run.name
        logs.configure(self._config.telemetry.logs, run=run, part="environment")
        self._redis, self._generator = connect_async(redis_url), generator
        self._name = f"environment/{serve.get_replica_context().replica_id.unique_id}"
        self._function = load_environment(self._config.environment.path or "")
        tokenizer = load_tokenizer(self._config.model.path, self._config.model.trust_remote_code)
        self._template = Template(tokenizer, self._config.data.chat)
        self._tools = SandboxTools(SANDBOXES)
        self._places = asyncio.Semaphore(self._config.environment.episodes)
        self._telemetry = Telemetry(self._redis, run)
        self._counts, self._running = Counter[str](), 0
        beating = keep_beating(self._redis, run, self._name, self._state)
        self._beat = asyncio.get_running_loop().create_task(beating)

    async def sample(
        self, request: SamplingRequest, min_version: int, temperature: float, weights_come: bool
    ) -> list[Completion] | Failed:
        """`request.n` episodes on the prompt's row, on weights of version `min_version` or newer."""
        episodes = [
            asyncio.ensure_future(self._until_made(request, i, min_version, temperature, weights_come))
            for i in range(request.n)
        ]
        try:
            return await asyncio.gather(*episodes)
        except HoraError as error:
            return Failed(str(error))
        finally:
            for episode in episodes:
                episode.cancel()
            await self._telemetry.flush()

    async def _until_made(
        self, request: SamplingRequest, number: int, version: int, temperature: float, weights_come: bool
    ) -> Completion:
        """One episode, sampled again where its environment made none. Raises RunError after
        environment.attempts tries."""
        attempts = self._config.environment.attempts
        for attempt in range(attempts):
            seed = (request.seed + (attempt * request.n + number + 1) * SEED_STEP) % SEEDS
            sample = self._sample(replace(request, n=1, seed=seed), temperature, weights_come)
            try:
                async with self._places:
                    return await self._one(request.prompt, sample, version)
            except EnvironmentFault as error:
                self._count(f"episodes_lost:{error.kind}")
                fault = error
                log.warning(
                    "an episode is sampled again",
                    prompt=request.prompt.index,
                    attempt=attempt + 1,
                    reason=f"the environment {fault}",
                )
        raise HoraError(
            f"environment {self._config.environment.path} made no episode of row {request.prompt.index} "
            f"(problem {request.prompt.text!r:.60}) in {attempts} tries (environment.attempts); last: it "
            f"{fault}"
        )

    async def _one(self, prompt: Prompt, sample: Sample, version: int) -> Completion:
        conversation = Conversation(
            self._template,
            self._opening(prompt),
            prompt.tokens,
            self._config.environment.history,
        )
        policy = Policy(conversation, sample, self._config, version)
        row = Row(prompt.index, prompt.text, prompt.answer, prompt.row)
        self._running += 1
        try:
            made = await run_episode(self._function, row, conversation, policy, self._tools, self._config)
        finally:
            self._running -= 1
        self._count("episodes")
        self._count("episodes_cut", int(policy.over))
        self._count("episode_turns", conversation.turns)
        return made

    def _opening(self, prompt: Prompt) -> Sequence[Message]:
        return opening(prompt.text, self._config.data)

    def _sample(self, request: SamplingRequest, temperature: float, weights_come: bool) -> Sample:
        """Turns of one episode; each has a seed of its own."""
        turn = 0

        async def sample(context: Tokens, most: int, version: int) -> Completion:
            nonlocal turn
            turn += 1
            generate = generator_calls(
                self._generator, self._config, version, temperature, weights_come=weights_come
            )
            prompt = replace(request.prompt, tokens=context, row={})
            seed = (request.seed + turn * SEED_STEP) % SEEDS
            (answer,) = await generate(replace(request, prompt=prompt, seed=seed, max_tokens=most))
            return answer

        return sample

    def _count(self, name: str, amount: int = 1) -> None:
        self._counts[name] += amount
        self._telemetry.add(name, amount)

    def _state(self) -> dict[str, object]:
        return {
            "state": "serving",
            "running": self._running,
            **self._counts,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }

    async def __del__(self) -> None:
        if hasattr(self, "_beat"):
            self._beat.cancel()
        if hasattr(self, "_tools"):
            self._tools.close()
