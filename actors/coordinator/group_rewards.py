"""Group rewards: computed from the texts of all completions once a group is complete.

Pre-rollouts are stored with the plan, before Phase B. So group rewards are sent with the Phase B rollouts
(`common/wire.py`), and success cannot depend on them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hora_rl.common.data.stop_tokens import completed, silent_tokens, stop_texts
from hora_rl.common.types import Group, Prompt, Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Rank = Callable[[Prompt, Group], Awaitable[Group]]
"""Returns the group of a prompt with group rewards added."""


async def unranked(prompt: Prompt, group: Group) -> Group:
    """The group unchanged: no group rewards are configured."""
    return group


def ranked(group: Group, values: Sequence[Mapping[str, float]]) -> Group:
    """`group` with group rewards added. `values` (G_i,) holds those of each rollout by name."""
    rollouts = tuple(
        replace(r, rewards={**r.rewards, **value}) for r, value in zip(group.rollouts, values, strict=True)
    )
    return replace(group, rollouts=rollouts, ranked=tuple(values[0]))


class LastTexts:
    """Decodes a rollout to the text that its rewards saw. Phase A rollouts are stored as tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._silent = tokenizer, silent_tokens(tokenizer)
        self._stop = stop_texts(stop, tokenizer)

    def __call__(self, rollout: Rollout) -> str:
        """The last turn, without its end token and special tokens."""
        ids = rollout.tokens[-rollout.turns[-1].sampled :] if rollout.turns else rollout.tokens
        return completed(self._tokenizer, self._silent, ids.tolist(), rollout.finish_reason, self._stop)
