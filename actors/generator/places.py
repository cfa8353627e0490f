"""Admission of requests to one replica, for training and for other uses."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hora_rl.common.errors import NoRoom
from hora_rl.common.types import BELOW_TRAINING, SamplingRequest


@dataclass(slots=True)
class Admission:
    """Admits up to `requests` calls. Of their completions at most `aside` may have lower priority than
    training.

    vLLM's priority applies only to waiting requests; running ones keep their place. Without limits an
    evaluation could hold all places when a training batch arrives.
    """

    name: str
    requests: int
    aside: int
    sampling: int = 0
    sampling_aside: int = 0

    @contextmanager
    def held(self, requests: Sequence[SamplingRequest]) -> Iterator[None]:
        """Hold a place for one call during the block. Raises NoRoom if the replica is full. A single call may
        exceed `aside`."""
        if self.sampling >= self.requests:
            raise NoRoom(f"{self.name} has {self.sampling} requests")
        n = sum(r.n for r in requests if r.priority >= BELOW_TRAINING)
        if n and self.sampling_aside and self.sampling_aside + n > self.aside:
            raise NoRoom(f"{self.name} samples {self.sampling_aside} completions of an evaluation")
        self.sampling += 1
        self.sampling_aside += n
        try:
            yield
        finally:
            self.sampling -= 1
            self.sampling_aside -= n
