"""How much of an engine's time clients of the endpoint get while a run trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

SHARE, SHARE_ON_CPU = 0.05, 0.02
SAVED_S = 2.0
QUIET_S = 300.0  # longer than the learner's step on a machine without a GPU usually takes


@dataclass(slots=True)
class Share:
    """Clients' credit, in seconds of the engine: time adds SHARE of itself, up to SAVED_S. With `one_cpu` it
    adds SHARE_ON_CPU, because there the HTTP side of a request takes the run's processors too.

    A client's sequence costs its part of all sequences, k of n for each second, and the whole engine until
    its first token, because a prompt holds up every other sequence. A request is taken to need what the last
    one's prompt needed, until it is known: otherwise many could begin on the same credit. Without credit no
    further request is admitted; those that run are completed, and their debt is paid by waiting. So a run
    loses about SHARE of its rate whatever a step of the engine costs, and many clients get no more than few.

    Between rollouts the engine is free. With `one_cpu` it is not: there it takes the cores of the learner's
    step, until no rollout came for QUIET_S, as in a run that is paused.
    """

    one_cpu: bool = False
    clock: Callable[[], float] = time.monotonic
    rollouts: int = 0
    clients: int = 0
    _credit: float = field(default=SAVED_S, init=False)
    _prompt_s: float = field(default=0.0, init=False)
    _at: float = field(init=False)
    _trained_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._at = self.clock()
        self._trained_at = self._at - QUIET_S

    @property
    def is_open(self) -> bool:
        """Whether a client's request may begin."""
        self._accrue()
        return self._credit > 0.0 or self._free

    def add(self, rollouts: int = 0, clients: int = 0) -> None:
        """Note so many sequences more, or fewer where it is negative."""
        self._accrue()
        self.rollouts += rollouts
        self.clients += clients

    def begin(self) -> float:
        """Take off the credit, and return, the seconds that a prompt is expected to need."""
        self._accrue()
        expected = 0.0 if self._free else self._prompt_s
        self._credit -= expected
        return expected

    def charge(self, seconds: float | None, begun: float = 0.0) -> None:
        """Take off the credit what a prompt needed beyond `begun`, which `begin` returned. None: it was never
        computed."""
        self._accrue()
        if seconds is not None:
            self._prompt_s = seconds
        self._credit -= (0.0 if self._free else seconds or 0.0) - begun

    @property
    def _free(self) -> bool:
        return not self.rollouts and not (self.one_cpu and self._at - self._trained_at < QUIET_S)

    def _accrue(self) -> None:
        now = self.clock()
        passed, self._at = now - self._at, now
        if self.rollouts:
            self._trained_at = now
        spent = 0.0 if self._free or not self.clients else self.clients / (self.clients + self.rollouts)
        earned = SHARE_ON_CPU if self.one_cpu else SHARE
        self._credit = min(SAVED_S, self._credit + passed * (earned - spent))
