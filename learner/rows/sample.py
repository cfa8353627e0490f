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
        """The sampled tokens (N,)."""
        return self.tokens if self.places is None else self.tokens[self.places]


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """`tokens` (L,) after `prompt`. `places` (N,) are the indices of the sampled tokens in `tokens`; None:
    all. `span` are their indices in the rollout."""

    prompt: Tokens
    tokens: Tokens
    places: NDArray[np.int64] | None
    span: slice


def sequences(prompt: Tokens, rollout: Rollout) -> Iterator[Sequence]:
    """The sequences of a rollout, in order: the first after the group's `prompt`, and one per turn with a
    fresh context."""
    if not rollout.turns:
        yield Sequence(prompt, rollout.tokens, None, slice(None))
        return
    starts = accumulate((turn.sampled for turn in rollout.turns), initial=0)
    part: list[tuple[int, Turn]] = []
    for start, turn in zip(starts, rollout.turns, strict=False):
        if turn.anew:
            yield _sequence(prompt, rollout, part)
            prompt, part = turn.given, []
        part.append((start, turn))
    yield _sequence(prompt, rollout, part)


def _sequence(prompt: Tokens, rollout: Rollout, part: list[tuple[int, Turn]]) -> Sequence:
    pieces: list[Tokens] = []
    places: list[NDArray[np.int64]] = []
    length = 0
    for start, turn in part:
        context = turn.given[:0] if turn.anew else turn.given  # a fresh context is the prompt
        pieces += [context, rollout.tokens[start : start + turn.sampled]]
        length += len(context)
        places.append(np.arange(length, length + turn.sampled))
        length += turn.sampled
    start, (last, turn) = part[0][0], part[-1]
    span = slice(start, last + turn.sampled)
    return Sequence(prompt, np.concatenate(pieces), np.concatenate(places), span)
