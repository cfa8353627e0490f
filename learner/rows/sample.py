"""Training sequences, and the sequences on which the policy runs in a rollout of several turns. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from hora_rl.common.types import LogProbs, Rollout, Tokens, Turn


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A rollout, or one sequence of a rollout of several turns. `tokens` (L,) follow `prompt`. `places` are
    the indices of the N sampled tokens in `tokens`; None: all (N = L). `logprobs` and `match` have (N,): log
    π_gen, and whether the token is of the learner's current version. `scale` is a sampled token's weight in
    the loss; tokens given between turns are not in the loss."""

    prompt: Tokens
    tokens: Tokens
    logprobs: LogProbs
    advantage: float
    scale: float
    match: NDArray[np.bool_]
    places: NDArray[np.int64] | None = None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)

    def sources(self, start: int) -> NDArray[np.int64]:
        """Indices in a row (N,) whose hidden states predict the sampled tokens, if `tokens` begin at `start`.
        The first token is predicted at the prompt's end, every other one at the token before."""
        places = np.arange(len(self.tokens)) if self.places is None else self.places
        return np.where(places == 0, len(self.prompt), places + start) - 1

    @property
    def targets(self) -> Tokens:
        return self.tokens if self.places is None else self.tokens[self.places]


def sequences(
    prompt: Tokens, rollout: Rollout, advantage: float = 0.0, scale: float = 0.0, version: int = 0
) -> Iterator[Sample]:
    """The samples of a rollout, in order: the first after the group's `prompt`, and one per turn with a fresh
    context. `match` are the tokens of `version`."""
    match = np.zeros(len(rollout.tokens), dtype=bool)
    for each in rollout.spans:
        match[each.start : each.end] = each.version == version
    if not rollout.turns:
        yield Sample(prompt, rollout.tokens, rollout.logprobs, advantage, scale, match)
        return
    starts = accumulate((turn.sampled for turn in rollout.turns), initial=0)
    turns = list(zip(starts, rollout.turns, strict=False))
    fresh = [i for i, (_, turn) in enumerate(turns) if i == 0 or turn.anew]
    for begin, end in zip(fresh, [*fresh[1:], len(turns)], strict=True):
        part = turns[begin:end]
        prompt = part[0][1].context if part[0][1].anew else prompt
        span = slice(part[0][0], part[-1][0] + part[-1][1].sampled)
        tokens, places = _joined(rollout, part)
        yield Sample(prompt, tokens, rollout.logprobs[span], advantage, scale, match[span], places)


def _joined(rollout: Rollout, part: list[tuple[int, Turn]]) -> tuple[Tokens, NDArray[np.int64]]:
    """The tokens of consecutive turns (L,), without a fresh context, and indices (N,) of the sampled ones."""
    pieces: list[Tokens] = []
    places: list[NDArray[np.int64]] = []
    length = 0
    for start, turn in part:
        context = turn.context[:0] if turn.anew else turn.context
        pieces += [context, rollout.tokens[start : start + turn.sampled]]
        length += len(context) + turn.sampled
        places.append(np.arange(length - turn.sampled, length))
    return np.concatenate(pieces), np.concatenate(places)
