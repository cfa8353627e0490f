"""Samples completions of a tiny model in this process, all that are asked for at the same time in one batch.

Stands where the generators and the verifier stand in a run: `phase_a` and `phase_b` call `sample`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hora_rl.actors.coordinator.shard import Draw
from hora_rl.common.config import Config
from hora_rl.common.types import Prompt, Rollout, VersionSpan
from research.tasks.recall import prefilled
from research.tasks.reward import TAGGED, is_right

Sampled = list[tuple[list[int], list[float]]]


@dataclass(slots=True)
class _Asked:
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
        self._asked: list[_Asked] = []

    async def sample(self, prompt: Prompt, draw: Draw) -> list[Rollout]:
        """The `draw.n` scored rollouts of one prompt."""
        loop = asyncio.get_running_loop()
        asked = _Asked(prompt, draw, loop.create_future())
        if not self._asked:
            loop.call_soon(self._answer_all)  # after every task that is ready to ask
        self._asked.append(asked)
        return await asked.answer

    def _answer_all(self) -> None:
        asked, self._asked = self._asked, []
        prompts = torch.from_numpy(np.stack([a.prompt.tokens for a in asked])).long()
        sampled = iter(self._decode(prompts, [a.draw.n for a in asked]))
        for a in asked:
            a.answer.set_result([self._rollout(a, *next(sampled)) for _ in range(a.draw.n)])

    def _rollout(self, asked: _Asked, tokens: list[int], logprobs: list[float]) -> Rollout:
        ended = tokens[-1] == self._tokenizer.eos_token_id
        text = self._text(tuple(tokens[:-1] if ended else tokens))
        rewards = {self._reward: float(is_right(text, asked.prompt.answer, self._form))}
        return Rollout(
            tokens=np.array(tokens, dtype=np.int32),
            logprobs=np.array(logprobs, dtype=np.float32),
            finish_reason="stop" if ended else "length",
            spans=(VersionSpan(self.version, 0, len(tokens)),),
            phase=asked.draw.phase,
            rewards=rewards,
            success=self._config.reward.succeeded(rewards),
            round=asked.draw.round,
        )

    @torch.no_grad()
    def _decode(self, prompts: Tensor, counts: Sequence[int]) -> Sampled:
        """Tokens and log-probs of `counts[i]` completions of each of the prompts (B, P), prompt by prompt.

        Completions with the same beginning are one row of the model's batch until they part: `node` (n,) is
        the row at which each open completion stands.
        """
        end, most = self._tokenizer.eos_token_id, self._config.rollout.max_response_tokens
        node = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        rows = torch.arange(len(node))
        tokens, logprobs = torch.full((len(node), most), end), torch.zeros(len(node), most)
        cache, logits = prefilled(self._model, prompts)
        for place in range(most):
            log_probs = torch.log_softmax(logits.float() / self._config.rollout.temperature, dim=-1)
            next_ = self._next(log_probs, node)
            tokens[rows, place], logprobs[rows, place] = next_, log_probs[node, next_]
            open_ = next_ != end
            rows = rows[open_]
            if not len(rows) or place == most - 1:
                break
            words = logits.shape[1]
            begun, node = torch.unique(node[open_] * words + next_[open_], return_inverse=True)
            cache.reorder_cache(begun // words)
            inputs = (begun % words)[:, None]
            logits = self._model(input_ids=inputs, past_key_values=cache, use_cache=True).logits[:, -1]
        return _cut(tokens, logprobs, end)

    def _next(self, log_probs: Tensor, node: Tensor) -> Tensor:
        """A token (n,) for each completion: the i-th at a row of `log_probs` (R, V) gets its i-th draw."""
        counts = torch.bincount(node, minlength=len(log_probs))
        draws = torch.multinomial(
            log_probs.exp(), int(counts.max()), replacement=True, generator=self._random
        )
        order = torch.argsort(node, stable=True)
        place = torch.empty_like(node)
        place[order] = torch.arange(len(node)) - (counts.cumsum(0) - counts)[node[order]]
        return draws[node, place]


def _cut(tokens: Tensor, logprobs: Tensor, end: int) -> Sampled:
    """Rows of (N, L), each up to and with its first end token."""
    lengths = torch.where((tokens == end).any(1), (tokens == end).int().argmax(1) + 1, tokens.shape[1])
    return [
        (t[:n], p[:n]) for t, p, n in zip(tokens.tolist(), logprobs.tolist(), lengths.tolist(), strict=True)
    ]
