"""HORA inside TRL's GRPOTrainer: the same Γ·G rows per generation batch, divided over its prompts by `allocate`.

    trainer = HoraTrainer(pre_rollouts=8, hit=1, model=..., reward_funcs=[format, accuracy],
                          args=GRPOConfig(loss_type="dr_grpo", beta=0.0, num_generations=32, ...), ...)

TRL keeps G rows per prompt. Here the first G0 of each stay, the other rows go where Phase A says, and the advantages
are computed per prompt and multiplied by G/G_i. TRL's dr_grpo loss divides by Γ·G, so that factor turns it into the
paper's (1/Γ) Σ_i (1/G_i) Σ_j. This holds with KL 0 and micro-batches of equal size, in one process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from trl import GRPOTrainer

from allocator import allocate


class HoraTrainer(GRPOTrainer):
    """`pre_rollouts`: G0. `hit`: index of the reward function whose value 1 counts as a success."""

    def __init__(
        self, *args: Any, pre_rollouts: int, hit: int = 0, rule: str = "hit_utility", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.loss_type != "dr_grpo" or self.beta != 0.0 or self.accelerator.num_processes != 1:
            raise ValueError("HoraTrainer needs loss_type='dr_grpo', beta=0.0 and one process")
        if not 0 < pre_rollouts < self.num_generations:
            raise ValueError(f"pre_rollouts must be in 1..{self.num_generations - 1}, not {pre_rollouts}")
        self._pre, self._hit, self._rule = pre_rollouts, hit, rule
        self._phase_a: tuple[Any, ...] | None = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        prompts = inputs[:: self.num_generations]
        first = [row for row in prompts for _ in range(self._pre)]
        self._phase_a = self._generate_each([row["prompt"] for row in first])
        rewards = super()._calculate_rewards(
            first, [row["prompt"] for row in first], self._phase_a[3], self._phase_a[1]
        )
        successes = (rewards[:, self._hit] >= 1).reshape(len(prompts), self._pre).sum(1).cpu().numpy()
        extra = allocate(successes, self._pre, len(inputs) - len(first), rule=self._rule)
        # Phase A of all prompts comes first, Phase B behind it; TRL shuffles the rows afterwards anyway.
        owner = np.concatenate(
            [np.repeat(np.arange(len(prompts)), self._pre), np.repeat(np.arange(len(prompts)), extra)]
        )
        output = super()._generate_and_score_completions([dict(prompts[i]) for i in owner])
        output["advantages"] = self._advantages(torch.from_numpy(owner), len(prompts)).to(
            output["advantages"].device
        )
        self.last_owner = owner
        return output

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        """Phase A's rows are there already; only Phase B's are sampled."""
        if self._phase_a is None:
            return super()._generate(prompts)
        first, self._phase_a = self._phase_a, None
        second = self._generate_each(prompts[len(first[1]) :])
        return tuple(
            a + b if isinstance(a, list) and isinstance(b, list) else b
            for a, b in zip(first, second, strict=True)
        )

    def _generate_each(self, prompts: list[Any]) -> tuple[Any, ...]:
        # With vLLM, TRL asks once for every num_generations-th prompt; ragged groups need every row asked for.
        count, self.num_generations = self.num_generations, 1
        try:
            return super()._generate(prompts)
        finally:
            self.num_generations = count

    def _calculate_rewards(self, *args: Any) -> torch.Tensor:
        self._rewards = super()._calculate_rewards(*args)
        return self._rewards

    def _advantages(self, owner: torch.Tensor, count: int) -> torch.Tensor:
        """(R - mean_i) / (std_i + 1e-4) · G/G_i for each row, zero where a prompt's rewards are all equal."""
        total = (self._rewards.cpu() * self.reward_weights.cpu()).nansum(1)
        advantages = torch.zeros_like(total)
        for i in range(count):
            rows = owner == i
            group = total[rows]
            if len(group) > 1 and group.max() > group.min():
                advantages[rows] = (
                    (group - group.mean()) / (group.std() + 1e-4) * self.num_generations / len(group)
                )
        return advantages
