"""A GPU shared with a generator whose engine can sleep: only the learner uses the GPU during a step.
Publishing the next version wakes the engine (`actors/generator/deployment.py` is the replica's side)."""

import time
from dataclasses import dataclass

import torch

from hora_rl.common.config import Config
from hora_rl.common.errors import RunError
from hora_rl.common.live.telemetry import STEPPING, TO_SLEEP, Heartbeat
from hora_rl.learner.weights.publisher import Publisher

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class SharedCard:
    """The shared GPU of a run with `generator.sleep`; otherwise both methods do nothing."""

    config: Config
    heart: Heartbeat
    publisher: Publisher

    def acquire(self, step: int) -> dict[str, float]:
        """Wait until the engines sleep at the newest version; returns the seconds as a metric. A starting
        replica is awaited too: it would take memory that the step needs.

        Raises RunError after learner.wait_limit_s.
        """
        if self.config.generator.sleep == "none":
            return {}
        began, limit = time.monotonic(), self.config.learner.wait_limit_s
        self.heart.update(state=TO_SLEEP, step=step)
        while self.publisher.sleeping() < self.config.generator.replicas:
            if time.monotonic() - began > limit:
                raise RunError(
                    f"the generator did not fall asleep at version {self.publisher.published} within "
                    f"{limit:g} s (learner.wait_limit_s), and a step would not fit beside it "
                    "(generator.sleep): see `hora monitor` for whether it is up"
                )
            self.publisher.help_replicas(step)
            time.sleep(POLL_S)
        self.heart.update(state=STEPPING, step=step)
        return {"time/sleep": time.monotonic() - began}

    def give(self) -> None:
        """Free memory used only during a step, before the next version wakes the engine."""
        if self.config.generator.sleep != "none" and torch.cuda.is_available():
            torch.cuda.empty_cache()
