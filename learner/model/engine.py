"""The only file that trains with DeepSpeed: builds the engine and runs one optimizer step on this rank's
micro-batches.

The loss is a sum over tokens, already weighted by 1/(Γ G_i Z_ij): summed over micro-batches and ranks, the
objective for any cut of the batch. DeepSpeed averages over ranks, so the loss is multiplied by their number.
We mark the accumulation boundary (`managed_gradient_accumulation: false`), so ranks may have different
numbers of micro-batches. Ranks with fewer run empty ones, because ZeRO-3 gathers parameters in every
forward."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hora_rl.common.config import Config
from hora_rl.common.model.adapters import published_name, refuse_to_train
from hora_rl.common.model.model_files import not_finite, refuse_not_finite
from hora_rl.learner.model.agreement import check_agreement
from hora_rl.learner.model.cuda_kernels import use_block_masks
from hora_rl.learner.model.flops import Shape
from hora_rl.learner.model.loading import DTYPES, for_training, load_by_part, load_model
from hora_rl.learner.model.logprobs import Policy, compile_policy
from hora_rl.learner.model.lora import add_adapter, without_adapter
from hora_rl.learner.model.objective import Sums, add, policy_loss, read
from hora_rl.learner.model.optimizer import ClippedAdamW, adam, deepspeed_config, effective_stage, schedule
from hora_rl.learner.ranks import gathered
from hora_rl.learner.rows.batch import WIDTHS, MicroBatch, empty_micro_batch
from hora_rl.learner.rows.packing import Sharing, window_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Forward = Callable[..., tuple[torch.Tensor, torch.Tensor]]  # log-probs and entropies of the predictions
Task = tuple[MicroBatch, torch.Tensor | None, torch.Tensor | None]
"""A micro-batch with log π_prox and log π_ref (N,); None: the policy itself, no KL term."""


@dataclass(frozen=True, slots=True)
class Update:
    """Outcome of one optimizer step. `sums` are this rank's sums of the objective's statistics.

    `bad`: a loss or gradient was not finite. In float16 non-finite gradients are normal while the loss scale
    is being found; DeepSpeed raises at the smallest scale."""

    applied: bool
    bad: bool
    grad_norm: float
    learning_rate: float
    sums: dict[str, float]
    seconds: float


class Engine:
    """DeepSpeed engine of the policy at `config.model.path`. Needs an initialised process group. Raises
    ConfigError for a model whose log-probs the learner would compute wrongly."""

    def __init__(self, config: Config, rank: int, world: int) -> None:
        import deepspeed

        from hora_rl.learner.model.async_checkpoint import CheckpointWriter

        # Only inference calls this all-reduce in shared memory, and compiling it needs a C++ compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self._config, self.rank, self.world = config, rank, world
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._stage = effective_stage(config.learner, config.model.dtype)
        self._settings = deepspeed_config(config.learner, config.model.dtype)
        self._lora = config.learner.lora
        hf = self._load()
        if self._lora is not None:
            add_adapter(hf, config.run.seed, self._lora)
        self._policy = Policy(hf)
        if self._compiles:
            compile_policy(self._policy)
        second = config.learner.objective.kl and self._lora is None
        self._reference = self._frozen_policy() if second else None
        self._adam = adam(config.learner.optimizer, self._stage, self._policy.parameters())
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=self._policy,
            optimizer=self._adam,
            lr_scheduler=lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, schedule(config.learner)),
            config=self._settings,
            dist_init_required=False,
        )
        self._writer = self._engine.checkpoint_engine = CheckpointWriter(self._engine._config)
        dtype, temperature = config.model.dtype, config.rollout.temperature
        agreement = partial(check_agreement, dtype, temperature, self._policy, self._engine, self.device)
        if self.device.type == "cuda":
            self._policy.blocks = use_block_masks(self._policy.hf)
        self.unshared = agreement()
        if self.unshared and self._policy.blocks:  # not every family takes such a mask
            self._policy.blocks = False
            self.unshared = agreement()
        self.shape = Shape.of(self.hf)
        alike = all(gathered(not self.unshared))  # all ranks cut their groups in the same way
        window, sparse = window_of(self.hf.config), self._policy.blocks
        self.sharing = Sharing(self.shape.even, window, sparse) if alike else None

    def close(self) -> None:
        """Release the model. Needed in long-lived processes: DeepSpeed's hooks keep references to it."""
        self._engine.destroy()

    def _load(self) -> PreTrainedModel:
        """Load the initial policy; under ZeRO-3 parameter by parameter if possible."""
        model, learner, hf = self._config.model, self._config.learner, None
        if self._stage == 3:
            refuse_to_train(model)
            hf = load_by_part(model, DTYPES[model.dtype], self._settings, self.device)
        hf = load_model(model, learner) if hf is None else for_training(hf, learner)
        # Under ZeRO-3 every rank checks its shards.
        parameters = ((name, getattr(p, "ds_tensor", p)) for name, p in hf.named_parameters())
        refuse_not_finite(not_finite(parameters), model.path)
        return hf

    def _frozen_policy(self) -> Forward:
        """The reference policy of a KL term; under ZeRO-3 sharded like the policy."""
        import deepspeed

        policy = Policy(self._load()).requires_grad_(False).eval()
        if self._compiles:
            compile_policy(policy)  # rounds as the policy does
        if self._stage != 3:
            return policy.to(self.device)
        engine: Forward
        engine, *_ = deepspeed.initialize(model=policy, config=self._settings, dist_init_required=False)
        return engine

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"

    @property
    def _compiles(self) -> bool:
        return self.device.type == "cuda" and self._stage != 3

    @property
    def multiple(self) -> int:
        """Widths of micro-batches are multiples of this: on a card few shapes are better than few tokens."""
        return WIDTHS if self.device.type == "cuda" else 1

    @property
    def hf(self) -> PreTrainedModel:
        """The Hugging Face model inside; under ZeRO-3 its parameters are shards."""
        return self._policy.hf

    def step(
        self, micro_batches: Sequence[MicroBatch], fresh: Callable[[], MicroBatch | None] = lambda: None
    ) -> Update:
        """Run `updates_per_batch` gradient updates on one batch. With several, π_prox is computed before the
        first. If no rank has tokens of the current version, drift is measured on `fresh()` samples just
        before the update: generators that are up to date sample with these weights during the step."""
        started, rate = time.monotonic(), float(self._engine.get_lr()[0])
        objective = self._config.learner.objective
        tasks = self._tasks(self._aligned([m.to(self.device) for m in micro_batches]))
        sums: dict[str, float] = {}
        applied, bad = True, False
        for update in range(objective.updates_per_batch):
            update_sums, finite = self._accumulate(tasks)
            if update == 0 and all(gathered(update_sums["drift_tokens"] == 0.0)):
                sums |= self._drift(fresh())
            done = self._apply(finite)
            applied = applied and done
            bad = bad or not (done or (finite and self._config.model.dtype == "float16"))
            add(sums, update_sums, 1.0 / objective.updates_per_batch)
        adam = self._adam
        norm = adam.norm if isinstance(adam, ClippedAdamW) else self._engine.get_global_grad_norm()
        norm = float(norm) if finite and norm is not None else math.nan
        return Update(applied, bad, norm, rate, sums, seconds=time.monotonic() - started)

    def published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every published parameter with its Hugging Face name; with `learner.lora` only the adapter's,
        with their names in the adapter file. Each is unsharded, on the device, and valid until the next.

        A collective under ZeRO-3: all ranks must iterate to the end. Only one layer is gathered at a time."""
        import deepspeed

        for name, parameter in self.hf.named_parameters():
            if self._lora is not None:
                if not parameter.requires_grad:
                    continue
                name = published_name(name)
            with deepspeed.zero.GatheredParameters([parameter], enabled=self._stage == 3):
                yield name, parameter.detach()

    def gathered(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Like `published`, copied to host memory on rank 0; other ranks only take part in the collective."""
        dtype = DTYPES[self._config.model.dtype]
        for name, parameter in self.published():
            yield name, parameter.to(dtype=dtype, copy=True).cpu() if self.rank == 0 else parameter

    def save(self, folder: Path, tag: str) -> Callable[[], None]:
        """Capture the state. The returned function writes it, on any thread, before the next call. A
        collective."""
        self._engine.save_checkpoint(
            str(folder),
            tag=tag,
            save_latest=False,
            exclude_frozen_parameters=self._lora is not None,
        )
        return self._writer.taken()

    def agree(self, value: int) -> int:
        """Rank 0's `value`, on every rank. A collective."""
        return gathered(value)[0]

    def load(self, folder: Path, tag: str) -> None:
        """Load the state that `save` wrote under `tag`. A collective."""
        strict = self._lora is None  # a LoRA checkpoint lacks the base
        self._engine.load_checkpoint(str(folder), tag=tag, load_module_strict=strict)
        # The optimizer's state has the next rate of the schedule that it was saved under: learner.steps may
        # have been another, and at its end the rate is 0.
        now = self._engine.lr_scheduler
        settings = now.optimizer.param_groups, now.base_lrs, now.lr_lambdas
        for group, peak, factor in zip(*settings, strict=True):
            group["lr"] = peak * factor(now.last_epoch)

    def _aligned(self, micro_batches: list[MicroBatch]) -> list[MicroBatch]:
        """Pad with empty micro-batches to the largest number of any rank, at least one."""
        count = max(1, *gathered(len(micro_batches)))
        return micro_batches + [empty_micro_batch(self.device)] * (count - len(micro_batches))

    def _tasks(self, batch: list[MicroBatch]) -> list[Task]:
        objective, absent = self._config.learner.objective, [None] * len(batch)
        several = objective.updates_per_batch > 1
        prox = [self._frozen(self._engine, micro)[0] for micro in batch] if several else absent
        reference = self._reference_logprobs(batch) if objective.kl else absent
        return list(zip(batch, prox, reference, strict=True))

    def _reference_logprobs(self, batch: list[MicroBatch]) -> list[torch.Tensor]:
        """Log-probs of the initial policy: a second model, or with LoRA the adapter switched off."""
        if self._reference is not None:
            return [self._frozen(self._reference, micro)[0] for micro in batch]
        with without_adapter(self.hf):
            return [self._frozen(self._engine, micro)[0] for micro in batch]

    def _accumulate(self, tasks: list[Task]) -> tuple[dict[str, float], bool]:
        """Add up the gradients of `tasks`. Returns this rank's sums, and whether every rank's losses were
        finite. Nothing waits for the device before all of its work is queued."""
        objective, sums = self._config.learner.objective, dict[str, float]()
        losses, stats = list[torch.Tensor](), list[Sums]()
        for micro, prox, reference in tasks:
            logprobs, entropy = self._forward(self._engine, micro)
            prox = logprobs.detach() if prox is None else prox
            loss, of_micro = policy_loss(logprobs, prox, micro, objective, reference)
            self._engine.backward(loss * self.world)
            losses.append(loss.detach())
            stats.append(of_micro | {"entropy": entropy.where(micro.scale > 0, 0.0).sum()})
        for values in read(stats):
            add(sums, values)
        return sums, all(gathered(bool(torch.stack(losses).isfinite().all())))

    def _drift(self, micro: MicroBatch | None) -> dict[str, float]:
        """Drift sums on `micro`. Every rank runs one forward, because ZeRO-3 gathers parameters there."""
        micro = empty_micro_batch(self.device) if micro is None else micro.to(self.device)
        gap = (self._frozen(self._engine, micro)[0] - micro.logprobs)[micro.match]
        return {"drift": float(gap.abs().sum()), "drift_tokens": float(gap.numel())}

    def _apply(self, finite: bool) -> bool:
        """Take the optimizer step, or drop the gradients of all ranks if any rank's loss was not finite."""
        if finite or self._stage > 0:
            self._engine.step()  # The optimizers themselves refuse gradients that are not finite.
            applied = bool(self._engine.was_step_applied())
            if not applied and self._config.learner.offload_optimizer and self._stage in (1, 2):
                # DeepSpeed keeps the refused sum there and would add every later gradient to that.
                kept = self._optimizer.averaged_gradients
                kept.update(dict.fromkeys(kept))
            return finite and applied
        self._engine.zero_grad()
        return False

    def _forward(self, module: Forward, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return module(micro, self._config.rollout.temperature, self._config.learner.logit_chunk)

    @torch.no_grad()
    def _frozen(self, module: Forward, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return self._forward(module, micro)
