"""How many requests one replica samples for at a time, and how much of that is not for training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hora_rl.actors.generator.share import Share
from hora_rl.common.errors import NoRoom
from hora_rl.common.types import BELOW_TRAINING, SamplingRequest


@dataclass(slots=True)
class Admission:
    """`requests` requests, among them at most `aside` completions that wait behind training's; and beside
    them at most `served` completions of the endpoint's, begun as `share` allows. A replica that is pinned for
    an evaluation gives it all requests.

    vLLM's priority orders the waiting line alone: what runs keeps its place. Without a limit an evaluation
    could hold all places when a batch of training arrives.
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
        """A place for one call's requests, for the length of the block. Raises NoRoom when there is none; one
        call alone may be larger than `aside`."""
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
        """Places for `n` completions of the endpoint for the length of the block, which calls what it is
        given with the seconds that the prompt needed. Raises NoRoom when there are none."""
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
