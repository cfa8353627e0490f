"""Samples completions of a tiny model in this process, all that are asked for at the same time in one batch.

Stands where the generators and the verifier stand in a run: `sample` is what `phase_a` and `phase_b` call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from common.answers import format_reward
from common.config import Config
from common.errors import ConfigError
from common.reward_names import function_of
from common.types import Phase, Prompt, Rollout, VersionSpan
from common.user_rewards import is_group, load_reward
from deploy.tasks.recall import one_of

Sampled = list[tuple[list[int], list[float]]]


@dataclass(slots=True)
class _Asked:
    prompt: Prompt
    phase: Phase
    n: int
    answer: asyncio.Future[list[Rollout]]


class LocalSampler:
    """Rollouts of prompts of equal length on the weights that `model` has now, which are version
    `version`."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: Config) -> None:
        self.version = 0
        self._model, self._tokenizer, self._config = model, tokenizer, config
        self._random = torch.Generator().manual_seed(config.run.seed)
        self._rewards = {name: _reward(name) for name in config.reward.names}
        self._asked: list[_Asked] = []

    async def sample(self, prompt: Prompt, phase: Phase, n: int) -> list[Rollout]:
        """`n` scored rollouts of one prompt."""
        loop = asyncio.get_running_loop()
        asked = _Asked(prompt, phase, n, loop.create_future())
        if not self._asked:
            loop.call_soon(self._answer_all)  # after every task that is ready to ask
        self._asked.append(asked)
        return await asked.answer

    def _answer_all(self) -> None:
        asked, self._asked = self._asked, []
        prompts = torch.from_numpy(np.stack([a.prompt.tokens for a in asked])).long()
        sampled = iter(self._decode(prompts, [a.n for a in asked]))
        for a in asked:
            a.answer.set_result([self._rollout(a, *next(sampled)) for _ in range(a.n)])

    def _rollout(self, asked: _Asked, tokens: list[int], logprobs: list[float]) -> Rollout:
        ended = tokens[-1] == self._tokenizer.eos_token_id
        text = str(self._tokenizer.decode(tokens[:-1] if ended else tokens))
        rewards = {
            name: reward(asked.prompt.text, text, asked.prompt.answer)
            for name, reward in self._rewards.items()
        }
        return Rollout(
            tokens=np.array(tokens, dtype=np.int32),
            logprobs=np.array(logprobs, dtype=np.float32),
            finish_reason="stop" if ended else "length",
            spans=(VersionSpan(self.version, 0, len(tokens)),),
            phase=asked.phase,
            rewards=rewards,
            success=self._config.reward.succeeded(rewards),
        )

    @torch.no_grad()
    def _decode(self, prompts: Tensor, counts: Sequence[int]) -> Sampled:
        """Tokens and log-probs of `counts[i]` completions of each of the prompts (B, P), prompt by prompt."""
        cache, row = DynamicCache(), torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        logits = self._model(input_ids=prompts, past_key_values=cache, use_cache=True).logits[:, -1]
        cache.reorder_cache(row)
        logits = logits[row]
        tokens, logprobs, open_ = [], [], torch.ones(len(row), dtype=torch.bool)
        for _ in range(self._config.rollout.max_response_tokens):
            log_probs = torch.log_softmax(logits.float() / self._config.rollout.temperature, dim=-1)
            next_ = torch.multinomial(log_probs.exp(), 1, generator=self._random)
            tokens.append(next_)
            logprobs.append(log_probs.gather(1, next_))
            open_ &= next_[:, 0] != self._tokenizer.eos_token_id
            if not open_.any():
                break
            logits = self._model(input_ids=next_, past_key_values=cache, use_cache=True).logits[:, -1]
        return _cut(torch.cat(tokens, 1), torch.cat(logprobs, 1), self._tokenizer.eos_token_id)


def _cut(tokens: Tensor, logprobs: Tensor, end: int) -> Sampled:
    """Rows of (N, L), each up to and with its first end token."""
    lengths = torch.where((tokens == end).any(1), (tokens == end).int().argmax(1) + 1, tokens.shape[1])
    return [
        (t[:n], p[:n]) for t, p, n in zip(tokens.tolist(), logprobs.tolist(), lengths.tolist(), strict=True)
    ]


def _reward(name: str) -> Callable[[str, str, str], float]:
    """The reward of this name. `accuracy` compares digits with digits: no answer of these tasks needs
    math-verify."""
    if name == "format":
        return lambda prompt, text, gold: format_reward(text)
    if name == "accuracy":
        return one_of
    if function_of(name) != name or is_group(name):
        raise ConfigError(
            f"reward {name!r}: a study's loop takes rewards of single completions that return one number"
        )
    return load_reward(name)
