"""Admission of requests to one replica, for training and for other uses."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hora_rl.actors.generator.share import Share
from hora_rl.common.errors import NoRoom
from hora_rl.common.types import BELOW_TRAINING, SamplingRequest


@dataclass(slots=True)
class Admission:
    """Admits up to `requests` calls. Of their completions at most `aside` may have lower priority than
    training. Additionally admits up to `served` completions of the endpoint, as `share` allows. A pinned
    replica has no `aside` limit.

    vLLM's priority applies only to waiting requests; running ones keep their place. Without limits an
    evaluation could hold all places when a training batch arrives.
    """

    name: str
    requests: int
    aside: int
    served: int = 0
    sampling: int = 0
    sampling_aside: int = 0
    share: Share = field(default_factory=Share)

    @contextmanager
    def held(self, requests: Sequence[SamplingRequest]) -> Iterator[None]:
        """Hold a place for one call during the block. Raises NoRoom if the replica is full. A single call may
        exceed `aside`."""
        if self.sampling >= self.requests:
            raise NoRoom(f"{self.name} has {self.sampling} requests")
        n = sum(r.n for r in requests if r.priority >= BELOW_TRAINING and r.pinned is None)
        if n and self.sampling_aside and self.sampling_aside + n > self.aside:
            raise NoRoom(f"{self.name} samples {self.sampling_aside} completions of an evaluation")
        every = sum(r.n for r in requests)
        self.sampling += 1
        self.sampling_aside += n
        self.share.add(rollouts=every)
        try:
            yield
        finally:
            self.sampling -= 1
            self.sampling_aside -= n
            self.share.add(rollouts=-every)

    @contextmanager
    def held_to_serve(self, n: int) -> Iterator[Callable[[float], None]]:
        """Hold places for `n` completions of the endpoint during the block. The block reports the seconds of
        the prompt to the yielded function. Raises NoRoom if the replica is full."""
        if self.share.clients + n > self.served:
            raise NoRoom(f"{self.name} samples {self.share.clients} completions of the endpoint")
        if not self.share.is_open:
            raise NoRoom(f"{self.name} samples for training, and clients have had their share")
        self.share.add(clients=n)
        begun, needed = self.share.begin(), list[float]()
        try:
            yield needed.append
        finally:
            self.share.add(clients=-n)
            self.share.charge(needed[0] if needed else None, begun)
