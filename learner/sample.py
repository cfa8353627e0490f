"""One training sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hora_rl.common.types import LogProbs, Tokens


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
