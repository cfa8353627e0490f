"""HORA inside TRL's GRPOTrainer: the same Γ·G rows per generation batch, divided over its prompts by a
`Session`.

    trainer = HoraTrainer(pre_rollouts=8, hit=1, rounds=4, stop="hit", model=...,
                          reward_funcs=[format, accuracy],
                          args=GRPOConfig(loss_type="dr_grpo", beta=0.0, num_generations=32, ...), ...)

TRL keeps G rows per prompt. Here the first G0 of each are sampled and scored, and the other rows go where
these say, in `rounds` rounds. Advantages are computed per prompt and multiplied by G/G_i. TRL's dr_grpo loss
divides by Γ·G, so that factor turns it into the paper's (1/Γ) Σ_i (1/G_i) Σ_j. This holds with KL 0 and
micro-batches of equal size.

Of several processes each samples and scores an equal part of every round, and all of them divide the whole
batch by the same rewards. So the number of processes must divide every round.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from hora_rl import Session, advantages


class HoraTrainer(GRPOTrainer):
    """`pre_rollouts`: G0. `hit`: index of the reward function whose value 1 counts as a success. `rule`,
    `rounds`, `stop` and `max_group_size`: those of `Session`. `objective` and `options` (k, wald, …): of
    `hora_rl.advantages`; by default GRPO's, which `scale_rewards` decides."""

    def __init__(
        self,
        *args: Any,
        pre_rollouts: int,
        hit: int = 0,
        rule: str = "hit_utility",
        rounds: int = 1,
        stop: str = "none",
        max_group_size: int | None = None,
        objective: str | None = None,
        options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if self.loss_type != "dr_grpo" or self.beta != 0.0:
            raise ValueError("HoraTrainer needs loss_type='dr_grpo' and beta=0.0")
        if self.scale_rewards == "batch" or self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                "HoraTrainer needs scale_rewards='group' or 'none' and multi_objective_aggregation="
                f"'sum_then_normalize', not {self.scale_rewards!r} and {self.multi_objective_aggregation!r}"
            )
        if not 0 < pre_rollouts < self.num_generations:
            raise ValueError(f"pre_rollouts must be in 1..{self.num_generations - 1}, not {pre_rollouts}")
        self._pre, self._hit = pre_rollouts, hit
        self._objective = objective or ("dr_grpo" if self.scale_rewards == "none" else "grpo")
        self._options = options or {}
        self.session_of = partial(Session, rule=rule, rounds=rounds, stop=stop, max_group_size=max_group_size)
        self._sampled: tuple[Any, ...] | None = None
        self._scored: torch.Tensor | None = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        prompts = gather_object(inputs)[:: self.num_generations]
        # Phase A of all prompts comes first, one round after the other behind it; TRL shuffles the rows
        # afterwards anyway.
        owner, self._sampled, self._scored = self._sample(prompts, len(inputs))
        mine = slice(self.accelerator.process_index * len(inputs), None)
        rows = [dict(prompts[i]) for i in owner[mine][: len(inputs)]]
        output = super()._generate_and_score_completions(rows)
        advantages, flat = self._advantages(torch.from_numpy(owner), len(prompts))
        output["advantages"] = advantages[mine][: len(inputs)].to(output["advantages"].device)
        # TRL has logged these two already, as if every G rows were one prompt's. The log holds one batch.
        self._logs["advantages"].extend(advantages.tolist())
        self._metrics["train"]["frac_reward_zero_std"][-1] = flat.float().mean().item()
        self.last_owner = owner
        return output

    def _sample(self, prompts: list[dict[str, Any]], each: int) -> tuple[Any, tuple[Any, ...], torch.Tensor]:
        """`each` completions by every process: the prompt of each row of all processes, process by process,
        what TRL's `_generate` returns for this one's rows, and the rewards of all."""
        n, processes, rank = len(prompts), self.accelerator.num_processes, self.accelerator.process_index
        session = self.session_of(n, each * processes - n * self._pre)
        owners, rewards, sampled, given = [], [], None, np.full(n, self._pre)
        while given.any():
            of = np.repeat(np.arange(n), given)
            if len(of) % processes:
                raise ValueError(f"{processes} processes cannot divide a round of {len(of)} rollouts equally")
            owners.append(of.reshape(processes, -1))
            rows = [prompts[i] for i in owners[-1][rank]]
            part = self.generate_each([row["prompt"] for row in rows])
            sampled = part if sampled is None else _joined(sampled, part)
            # (processes · rows, functions), process by process
            found = super()._calculate_rewards(rows, [row["prompt"] for row in rows], part[3], part[1])
            rewards.append(found.view(processes, len(rows), -1))
            hits = (found[:, self._hit] >= 1).cpu().numpy()
            session.tell(np.bincount(of, weights=hits, minlength=n).astype(np.int64), given)
            given = session.ask()
        return np.concatenate(owners, 1).ravel(), sampled, torch.cat(rewards, 1).flatten(0, 1)

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        """All rows are there already."""
        if self._sampled is None:
            return super()._generate(prompts)
        sampled, self._sampled = self._sampled, None
        return sampled

    def generate_each(self, prompts: list[Any]) -> tuple[Any, ...]:
        # With vLLM, TRL asks once for every num_generations-th prompt; ragged groups need every row asked
        # for.
        count, self.num_generations = self.num_generations, 1
        try:
            return super()._generate(prompts)
        finally:
            self.num_generations = count

    def _calculate_rewards(self, *args: Any) -> torch.Tensor:
        """In training every row is scored already, in its round."""
        scored, self._scored = self._scored, None
        self._rewards = super()._calculate_rewards(*args) if scored is None else scored
        return self._rewards

    def _advantages(self, owner: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`hora_rl.advantages` times G/G_i for each row, and which rows are of a prompt whose rewards are all
        equal. As in TRL, a row for which every reward function returned None has advantage 0 and is left out
        of its group's baseline."""
        rewards, of = self._rewards.cpu(), owner.numpy()
        total = (rewards * self.reward_weights.cpu()).nansum(1).numpy()
        scored, hits = ~rewards.isnan().all(1).numpy(), (rewards[:, self._hit] >= 1).numpy()
        found, flat = np.zeros(len(of)), np.zeros(len(of), dtype=bool)
        if scored.any():
            kept = total[scored], of[scored], self._objective, hits[scored]
            found[scored] = advantages(*kept, group_size=self.num_generations, per="group", **self._options)
        for i in range(count):
            rows = of == i
            found[rows] *= self.num_generations / rows.sum()
            group = total[rows & scored]
            flat[rows] = len(group) > 1 and np.ptp(group) == 0
        return torch.from_numpy(found).float(), torch.from_numpy(flat)


def _joined(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    """Rows of two calls of `_generate`, one behind the other; what is not one value a row is the second's."""
    return tuple(
        a + b if isinstance(a, list) and isinstance(b, list) else b
        for a, b in zip(first, second, strict=True)
    )
