"""AdamW for training without ZeRO, and the schedule of the learning rate."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hora_rl.common.config import LearnerConfig


class ClippedAdamW(torch.optim.AdamW):
    """AdamW that first clips the global gradient norm to `max_norm`, and keeps the norm in `norm`.

    Non-finite gradients are refused, as in ZeRO's optimizers: clipping would multiply every gradient by NaN.
    DeepSpeed reads `overflow` and then neither counts the step nor advances the schedule.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, max_norm: float, **settings: Any) -> None:
        super().__init__(parameters, **settings)
        self._max_norm = max_norm
        self.norm = math.nan
        self.overflow = False

    def step(self, closure: Any = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._max_norm))
        self.overflow = not math.isfinite(self.norm)
        return None if self.overflow else super().step(closure)


def schedule(learner: LearnerConfig) -> Callable[[int], float]:
    """Learning-rate factor of each update: linear warm-up over warmup_steps, then the configured decay until
    learner.steps. Each step has updates_per_batch updates."""
    settings, each = learner.optimizer, learner.objective.updates_per_batch
    warmup, total = settings.warmup_steps * each, learner.steps * each

    def factor(update: int) -> float:
        if update < warmup:
            return (update + 1) / warmup
        done = (update - warmup) / max(1, total - warmup)
        if settings.schedule == "linear":
            return max(0.0, 1.0 - done)
        if settings.schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
        return 1.0

    return factor
