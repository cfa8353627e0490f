"""Limits the share of engine time for clients of the endpoint while a run trains."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

SHARE, SHARE_ON_CPU = 0.05, 0.02
SAVED_S = 2.0
QUIET_S = 300.0  # longer than the learner's step on a machine without a GPU usually takes


@dataclass(slots=True)
class Share:
    """The clients' credit in engine seconds. Each second adds SHARE, up to SAVED_S in total. With `one_cpu`
    it adds SHARE_ON_CPU, because HTTP handling also takes the run's processors.

    k client sequences among n sequences cost k/n of each second. Until its first token a request costs the
    full time, because a prompt delays all sequences. Each request first pays for the last known prompt time,
    so that many cannot start on the same credit. Without credit no request is admitted; running requests
    finish, and waiting repays their debt. So a run loses about SHARE of its rate, whatever the engine's speed
    and the number of clients.

    Between rollouts the engine costs nothing. With `one_cpu` that holds only after QUIET_S without rollouts,
    as in a paused run, because the learner's step needs the same cores.
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
        """Change the number of running sequences."""
        self._accrue()
        self.rollouts += rollouts
        self.clients += clients

    def begin(self) -> float:
        """Charge the expected seconds of a prompt and return them."""
        self._accrue()
        expected = 0.0 if self._free else self._prompt_s
        self._credit -= expected
        return expected

    def charge(self, seconds: float | None, begun: float = 0.0) -> None:
        """Charge the actual `seconds` of a prompt, less `begun`, the return value of `begin`. None if the
        prompt was never computed."""
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
