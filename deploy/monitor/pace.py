"""Speed and remaining time of a run, measured from the first observed step."""

from __future__ import annotations

from dataclasses import dataclass

from hora_rl.deploy.monitor.run_state import RunState


@dataclass(slots=True)
class Pace:
    """Receives every state through `see`. Excludes the first step with its rollouts and its time."""

    seen: RunState | None = None
    first: RunState | None = None
    last: RunState | None = None

    def see(self, state: RunState) -> None:
        if self.seen is not None and state.step > self.seen.step:
            self.first = self.first or state
            self.last = state
        self.seen = state

    def per_second(self, flow: str) -> float | None:
        """Mean rate of `flow` (`rollouts_out`, …) from the end of the first to the end of the last step, or
        None."""
        if self.first is None or self.last is None or self.last.time <= self.first.time:
            return None
        return (self.last.totals[flow] - self.first.totals[flow]) / (self.last.time - self.first.time)

    def left_s(self) -> float | None:
        """Seconds until the last step at the current pace; None before two steps."""
        if self.first is None or self.last is None or self.last.step <= self.first.step:
            return None
        each = (self.last.time - self.first.time) / (self.last.step - self.first.step)
        return max(0.0, each * (self.last.steps - self.last.step))
