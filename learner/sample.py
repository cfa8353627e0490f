"""One sequence to learn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hora_rl.common.types import LogProbs, Tokens


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A rollout, or one sequence of those of several turns. `tokens` (L,) follow `prompt`, and `places` are
    those of the N sampled ones in `tokens`; None: all are (N = L). `logprobs` and `match` have (N,): log
    π_gen, and whether the token is of the learner's own version. `scale` is a sampled token's weight in the
    loss; those given between turns are not in the loss."""

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
        """Places in a row (N,) whose hidden states predict the sampled tokens, where `tokens` begin at
        `start`: those before them, and the prompt's last for the first."""
        places = np.arange(len(self.tokens)) if self.places is None else self.places
        return np.where(places == 0, len(self.prompt), places + start) - 1

    @property
    def targets(self) -> Tokens:
        """The sampled tokens (N,)."""
        return self.tokens if self.places is None else self.tokens[self.places]
