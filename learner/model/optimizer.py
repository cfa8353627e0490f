"""AdamW, the schedule of its learning rate, and DeepSpeed's settings."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from hora_rl.common.config import LearnerConfig, OptimizerConfig


class ClippedAdamW(torch.optim.AdamW):
    """AdamW that first clips the global gradient norm to `max_norm`, and keeps the norm in `norm`.

    Non-finite gradients are refused, as in ZeRO's optimizers: clipping would multiply every gradient by NaN.
    DeepSpeed reads `overflow` and then neither counts the step nor advances the schedule."""

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


def adam(
    settings: OptimizerConfig, stage: int, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of the trained `parameters`. Without ZeRO DeepSpeed would clip but report no norm."""
    plain = partial(ClippedAdamW, max_norm=settings.max_grad_norm)
    kind = plain if stage == 0 else torch.optim.AdamW
    return kind(
        [p for p in parameters if p.requires_grad],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        # One kernel on all threads; the default makes temporaries as large as the parameters.
        fused=True,
    )


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


def effective_stage(learner: LearnerConfig, dtype: str) -> int:
    """The ZeRO stage in use. Stage 0 becomes 2 in 16 bits, also on one rank: without ZeRO, DeepSpeed refuses
    gradients that are summed in float32, divides those of float16 by a loss scale that was never applied, and
    takes a step before the first. Stage 1 keeps float32 gradients unsharded. On one rank the buckets of stage
    2 move about 34 bytes per weight and micro-batch, expected 2% of a step on a card."""
    return 2 if learner.zero_stage == 0 and dtype != "float32" else learner.zero_stage


def deepspeed_config(learner: LearnerConfig, dtype: str) -> dict[str, object]:
    stage = effective_stage(learner, dtype)
    zero: dict[str, object] = {"stage": stage}
    if learner.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    precision: dict[str, object] = {}
    if dtype != "float32":
        precision = {
            "bf16" if dtype == "bfloat16" else "fp16": {"enabled": True},
            # In 16 bits the sum of many micro-batches would lose the last bits of each.
            "data_types": {"grad_accum_dtype": "fp32"},
        }
        if stage == 1:  # the sum is sent once a step, and would be rounded to 16 bits first
            precision["communication_data_type"] = "fp32"
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": 0.0 if stage == 0 else learner.optimizer.max_grad_norm,
        "zero_optimization": zero,
        # The same AdamW on every device, so a run can be compared with one elsewhere.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
        **precision,
    }
