"""How long each sequence of an engine has been decoding, and whether the engine decodes at all. Pure: counts
in, names out."""

from __future__ import annotations

from collections.abc import Mapping


class Clock:
    """`rollout.time_limit_s` for every sequence by itself.

    Only time in which a sequence gets tokens counts: not the engine's queue, not a pause while weights load,
    not what a preempted sequence waits for. Looked at every so many seconds, it is exact to one look.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.still_s = 0.0
        """Seconds since any of the sequences got a token; 0 when there are none."""
        self._seen: dict[str, tuple[int, float]] = {}

    def look(self, tokens: Mapping[str, int], elapsed_s: float, *, paused: bool = False) -> list[str]:
        """The sequences that are over the limit. `tokens`: of each sequence there is, `elapsed_s`: since the
        last look."""
        seen, moved = self._seen, not tokens or paused
        self._seen = {}
        for name, count in tokens.items():
            before, seconds = seen.get(name, (0, 0.0))
            decoding = count > before
            moved = moved or decoding
            self._seen[name] = (count, seconds + elapsed_s * (decoding and name in seen))
        self.still_s = 0.0 if moved else self.still_s + elapsed_s
        return [name for name, (_, seconds) in self._seen.items() if seconds > self.limit_s]
