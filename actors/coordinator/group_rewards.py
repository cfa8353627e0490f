"""Rewards of whole groups: known when a group is complete, from the text of all its completions.

The pre-rollouts of a group are stored with its shard's plan, before the extra ones exist. So these
values travel with the extra rollouts (`common/wire.py`), and no success can depend on them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hora_rl.common.data.stop_tokens import completed, silent_tokens
from hora_rl.common.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Rank = Callable[[Prompt, Group], Awaitable[Group]]
"""The group of a prompt with the rewards that its rollouts get among each other."""


async def unranked(prompt: Prompt, group: Group) -> Group:
    """Where no reward is of whole groups."""
    return group


def ranked(group: Group, values: Sequence[Mapping[str, float]]) -> Group:
    """`group` with the rewards (G_i,) that its rollouts got among each other."""
    rollouts = tuple(
        replace(r, rewards={**r.rewards, **value}) for r, value in zip(group.rollouts, values, strict=True)
    )
    return replace(group, rollouts=rollouts, ranked=tuple(values[0]))


class LastTexts:
    """Decodes a rollout to the text that its rewards saw; Phase A's rollouts are kept as tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer, self._silent = tokenizer, silent_tokens(tokenizer)

    def __call__(self, rollout: Rollout) -> str:
        """Its last turn, without the token that ended it and without special tokens."""
        ids = rollout.tokens[-rollout.turns[-1].sampled :] if rollout.turns else rollout.tokens
        return completed(self._tokenizer, self._silent, ids.tolist(), rollout.finish_reason)
