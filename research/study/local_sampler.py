"""Completions of a tiny model, sampled in this process, in place of generators and verifier."""

import asyncio
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hora_rl.actors.coordinator.shard import Draw
from hora_rl.common.config import Config
from hora_rl.common.types import Prompt, Rollout, VersionSpan
from research.tasks.decoding import Prefilled, decode, prefilled
from research.tasks.reward import TAGGED, is_right


@dataclass(slots=True)
class _Request:
    prompt: Prompt
    draw: Draw
    answer: asyncio.Future[list[Rollout]]


class LocalSampler:
    """Rollouts of prompts of equal length on the present weights of `model`, which are version `version`.

    The only reward is whether a completion is `form` with a right answer, which is accuracy for these tasks:
    their answers are digits.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: Config, form: str = TAGGED
    ) -> None:
        self.version = 0
        self._model, self._tokenizer, self._config = model, tokenizer, config
        self._random = torch.Generator().manual_seed(config.run.seed)
        self._text = cache(lambda tokens: str(tokenizer.decode(tokens)))  # few completions differ
        self._reward, self._form = config.reward.names[0], form
        self._open: list[_Request] = []
        self._begun: tuple[int, dict[int, int], Prefilled] | None = None  # version, rows by prompt

    async def sample(self, prompt: Prompt, draw: Draw) -> list[Rollout]:
        """The `draw.n` scored rollouts of one prompt."""
        loop = asyncio.get_running_loop()
        request = _Request(prompt, draw, loop.create_future())
        if not self._open:
            loop.call_soon(self._answer_all)  # after every task that is ready to ask
        self._open.append(request)
        return await request.answer

    def _answer_all(self) -> None:
        requests, self._open = self._open, []
        counts = [r.draw.n for r in requests]
        end, rollout = self._tokenizer.eos_token_id, self._config.rollout
        limits = {"end": end, "most": rollout.max_response_tokens, "temperature": rollout.temperature}
        prompts = self._prefilled([r.prompt for r in requests])
        sampled = iter(decode(self._model, prompts, counts, random=self._random, **limits))
        for r in requests:
            r.answer.set_result([self._rollout(r, *next(sampled)) for _ in range(r.draw.n)])

    def _prefilled(self, prompts: list[Prompt]) -> Prefilled:
        """Prompts are computed once for a version: later rounds ask again for those of the first."""
        wanted = [p.index for p in prompts]
        if self._begun is None or self._begun[0] != self.version or not self._begun[1].keys() >= {*wanted}:
            tokens = torch.from_numpy(np.stack([p.tokens for p in prompts])).long()
            rows = {index: row for row, index in enumerate(wanted)}
            self._begun = self.version, rows, prefilled(self._model, tokens)
        _, rows, begun = self._begun
        return begun.of([rows[index] for index in wanted])

    def _rollout(self, request: _Request, tokens: list[int], logprobs: list[float]) -> Rollout:
        ended = tokens[-1] == self._tokenizer.eos_token_id
        text = self._text(tuple(tokens[:-1] if ended else tokens))
        rewards = {self._reward: float(is_right(text, request.prompt.answer, self._form))}
        return Rollout(
            tokens=np.array(tokens, dtype=np.int32),
            logprobs=np.array(logprobs, dtype=np.float32),
            finish_reason="stop" if ended else "length",
            spans=(VersionSpan(self.version, 0, len(tokens)),),
            phase=request.draw.phase,
            rewards=rewards,
            success=self._config.reward.succeeded(rewards),
            round=request.draw.round,
        )
