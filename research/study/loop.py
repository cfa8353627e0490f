"""One cell of a study in one process, without servers: the coordinator's phases, the project's objective and
optimizer.

    prompts ─► phase_a, rounds, phase_b (sampled here) ─► groups ─► samples ─► one step ─► evaluation

On-policy: batch b is sampled on version b, as in a run with `rollout.max_staleness: 0`. Only for recall tasks
(`research.tasks`): their prompts are of equal length and their completions are short.
"""

import asyncio
import gc
import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import init_process_group, is_initialized

from hora_rl.actors.coordinator.allocation import BatchAllocation, allocate_round
from hora_rl.actors.coordinator.prompt_features import prior_of
from hora_rl.actors.coordinator.shard import Draw, Shard, next_round, phase_a, phase_b
from hora_rl.allocator.priors.base import Prior
from hora_rl.common.config import Config, ObjectiveConfig
from hora_rl.common.data.prompt_order import Counts, Mixture, Order
from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.errors import ConfigError
from hora_rl.common.types import Group, Prompt, Rollout
from hora_rl.learner.model.engine import Engine
from hora_rl.learner.ranks import set_device
from hora_rl.learner.records.step_records import group_record
from hora_rl.learner.rows.batch import MicroBatch, micro_batches, samples_of
from hora_rl.learner.rows.estimator import estimator_of
from hora_rl.learner.rows.packing import Sample, rows_of
from research.study.curve_sources import TaskCurves
from research.study.local_sampler import LocalSampler
from research.tasks.recall import TRAINED, load_task

ONE_OF = "research.tasks.reward:one_of"


@dataclass(slots=True)
class Parts:
    """The objects of a cell."""

    config: Config
    prompts: list[Prompt]
    order: Order
    prior: Prior
    engine: Engine
    sampler: LocalSampler
    curves: TaskCurves


def run_cell(config: Config, every: int, *, dynamic: bool = False) -> Path:
    """Train the cell in its run folder and evaluate every `every` steps. Returns the file of its curves,
    written last.

    With `dynamic` as DAPO's dynamic sampling (2503.14476): groups all right or all wrong are dropped, and the
    policy is updated once Γ others are there; more than Γ are dropped too. A step is a batch generated.

    The process may only run other cells afterwards. Raises ConfigError for a model that is not a recall
    task's, and for settings that a loop without servers cannot follow.
    """
    check(config)
    folder = config.run.path
    folder.mkdir(parents=True, exist_ok=True)
    gc.collect()  # the engine of the cell before is a circle
    parts = _prepare(config)
    steps, held, began = [], list[Group](), time.monotonic()
    size = config.rollout.prompts_per_batch
    # asyncio.run for each step would look up the SIGINT handler, which prints the result of the step before.
    with (
        (folder / "groups.jsonl").open("w") as records,
        closing(asyncio.new_event_loop()) as loop,
        closing(parts.engine),
    ):
        for step in range(config.learner.steps + 1):
            if step % every == 0 or step == config.learner.steps:
                parts.curves.measure(parts.engine.hf, step)
            if step == config.learner.steps:
                break
            groups = loop.run_until_complete(_batch(parts, step))
            rates = _rates(parts, groups)
            held += [g for g in groups if not dynamic or 0 < g.hits < g.size]
            grad_norm = 0.0
            if len(held) >= size:
                grad_norm, held = _train(parts, step, held[:size]), []
            steps.append(_record(config, step, groups, grad_norm))
            lines = ({**group_record(step, g, config), **p} for g, p in zip(groups, rates, strict=True))
            records.writelines(json.dumps(line) + "\n" for line in lines)
    return parts.curves.write(config, steps, seconds=time.monotonic() - began)


def check(config: Config) -> None:
    """Refuse settings that would silently mean something else here."""
    unlike = {
        "allocation.warmup.enabled": (config.allocation.warmup.enabled and config.gate is not None, False),
        "rollout.max_staleness": (config.rollout.max_staleness, 0),
        "rollout.shards": (config.rollout.shards, 1),
        "reward.answer": (config.reward.answer, "tags"),
        "reward.weights": (", ".join(config.reward.names).replace(ONE_OF, "accuracy"), "accuracy"),
        "learner.workers": (config.learner.workers, 1),
        "data.sources": (", ".join(config.data.sources) or "empty", "empty"),
        "environment.path": (config.environment.path or "null", "null"),
        "evaluation.every": (config.evaluation.every or "null", "null"),  # with it learner.keep_best
    }
    for key, (value, possible) in unlike.items():
        if value != possible:
            raise ConfigError(
                f"{config.run.name}: {key} is {value}: a loop in one process has only {possible}; set "
                "that, or run the study without --loop"
            )


def _prepare(config: Config) -> Parts:
    task = load_task(Path(config.model.path).parent)
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    rows = [(task.questions[i], "|".join(task.right[i])) for i in task.sets[TRAINED]]
    prompts = [Prompt(i, q, answer, render(tokenizer, q, config.data)) for i, (q, answer) in enumerate(rows)]
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed reads it
    set_device(config.learner, config.run.seed, 0)
    if not is_initialized():
        init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    engine = Engine(config, rank=0, world=1)
    return Parts(
        config,
        prompts,
        Order.of(config.data, config.rollout, config.run.seed, Mixture((len(prompts),))),
        prior_of(config.allocation, config.run, config.model.path, prompts),
        engine,
        LocalSampler(engine.hf, tokenizer, config, task.form),
        TaskCurves(task, tokenizer, config.rollout.max_response_tokens),
    )


async def _batch(parts: Parts, step: int) -> list[Group]:
    """The groups of batch `step`, sampled on the current weights; then prior and order learn from it."""
    config, rollout = parts.config, parts.config.rollout
    parts.sampler.version = step
    drawn = parts.order.rows(step)
    rows = np.array([row for _, row in drawn], dtype=np.int64)
    as_if = config.learner.objective.group_weight.as_if
    batch = BatchAllocation(config.allocation.rule, rows, *parts.prior.predict(rows), as_if)
    shard = Shard(
        run=config.run.name,
        batch=step,
        index=0,
        epochs=tuple(epoch for epoch, _ in drawn),
        prompts=tuple(parts.prompts[row] for row in rows),
        pre_rollouts=rollout.pre_rollouts,
        seed=config.run.seed,
        tokenizer="",
    )

    async def sample(draw: Draw) -> list[Rollout]:
        return await parts.sampler.sample(shard.prompts[draw.index], draw)

    divide = partial(allocate_round, config.rollout, config.allocation, batch, rows.tolist())
    plan = await phase_a(shard, sample, divide)
    for _ in range(config.allocation.under(batch.rule).rounds - 1):
        plan = await next_round(shard, plan, sample, divide)
    by_id = {group.id: group async for group in phase_b(shard, plan, sample)}
    groups = [by_id[name] for name in shard.ids]
    successes = {g.prompt_index: g.successes for g in groups}
    parts.prior.update(rows, np.array(list(successes.values()), dtype=np.int64), rollout.pre_rollouts)
    parts.order.observe(Counts(rollout.pre_rollouts, successes, {g.prompt_index: g.hits for g in groups}))
    return groups


def _rates(parts: Parts, groups: list[Group]) -> list[dict[str, float]]:
    """Of each group the exact success rate of its prompt on the current weights, where the task has one."""
    if parts.curves.rates is None:
        return [{} for _ in groups]
    rates = parts.curves.rates(parts.engine.hf, [g.prompt_index for g in groups])
    return [{"p": p} for p in rates.sum(axis=1).tolist()]


def _train(parts: Parts, step: int, groups: list[Group]) -> float:
    """One optimizer step on `groups`; returns the norm of its gradient."""
    config = parts.config
    estimator, objective = estimator_of(config), config.learner.objective
    samples = samples_of(groups, estimator, config.rollout.prompts_per_batch, step)
    if is_linear(objective):
        return parts.engine.step([tree(samples)] if samples else []).grad_norm
    budget = config.learner.tokens_per_microbatch
    micro, _ = micro_batches(rows_of(samples, budget, parts.engine.sharing), budget)
    return parts.engine.step(micro).grad_norm


def is_linear(objective: ObjectiveConfig) -> bool:
    """Whether the gradient is linear in the advantage where the ratio is 1, and no term counts tokens."""
    return objective.loss == "clip" and objective.updates_per_batch == 1 and objective.kl == 0.0


def tree(samples: Sequence[Sample]) -> MicroBatch:
    """The samples in one row, in which a beginning that several share is computed once: the prompts' common
    examples, and equal completions. An equal choice after an equal beginning has the sum of their weights,
    which has the gradient of all samples where that is linear."""
    tokens, positions, last = list[int](), list[int](), list[int]()
    choices = dict[tuple[int, int], tuple[float, float]]()  # (source, target) -> log-prob, weight
    sequences = [([*s.prompt.tolist(), *s.tokens.tolist()], s) for s in samples]
    for sequence, sample in sorted(sequences, key=lambda pair: pair[0]):
        common = sum(takewhile(bool, (tokens[i] == t for i, t in zip(last, sequence, strict=False))))
        new = sequence[common:-1]  # nothing follows the last token
        last[common:] = range(len(tokens), len(tokens) + len(new))
        tokens += new
        positions += range(common, common + len(new))
        chosen = zip(last[len(sample.prompt) - 1 :], sample.tokens.tolist(), strict=True)
        for choice, logprob in zip(chosen, sample.logprobs.tolist(), strict=True):
            weight = choices.get(choice, (0.0, 0.0))[1] + sample.advantage * sample.scale
            choices[choice] = logprob, weight
    depth = np.array(positions)
    beyond = np.triu(depth[None, :] <= depth[:, None], 1)  # the first of these is not below the token
    ends = np.where(beyond.any(1), beyond.argmax(1), len(tokens))
    sources, targets = torch.tensor([*choices]).T
    logprobs, weights = torch.tensor([*choices.values()]).T
    return MicroBatch(
        input_ids=torch.tensor([tokens]),
        position_ids=torch.tensor([positions]),
        ends=torch.from_numpy(ends)[None],
        sources=sources,
        targets=targets,
        logprobs=logprobs,
        advantage=weights,
        scale=torch.ones(len(choices)),
        sequence=torch.arange(len(choices)),
        match=torch.ones(len(choices), dtype=torch.bool),
    )


def _record(config: Config, step: int, groups: list[Group], grad_norm: float) -> dict[str, float]:
    """The record of a step, which generated `groups`."""
    estimator = estimator_of(config)
    return {
        "step": step,
        "hits": float(np.mean([g.hits > 0 for g in groups])),
        "signal": float(np.mean([np.ptp(estimator.rewards(g)) > 0 for g in groups])),
        "rollouts": float(sum(g.size for g in groups)),
        "tokens": float(sum(g.tokens for g in groups)),
        "entropy": float(-np.mean([r.logprobs.sum() for g in groups for r in g.rollouts])),
        "grad_norm": grad_norm,
    }
