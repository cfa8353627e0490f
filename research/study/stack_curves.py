"""Exact learning curves of a recall task's run through the whole stack, from its checkpoints.

One report compares either these or those of `research.study.loop`. A run's groups
have no exact success rate of their prompt: the weights that sampled them are not all kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedModel

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.errors import ConfigError
from hora_rl.evaluation.run_folders import records
from research.study.exact_curves import ExactCurves
from research.tasks.recall import load_task


def check_kept(config: Config) -> None:
    """Raise ConfigError where the run would drop checkpoints that its curve needs."""
    needed, kept = len(_steps_of(config)), config.learner.keep_checkpoints
    if kept < needed:
        raise ConfigError(
            f"{config.run.name}: learner.keep_checkpoints ({kept}) drops checkpoints of which the curve is "
            f"made; set it to {needed}, or learner.checkpoint_every higher"
        )


def write_stack_curves(config: Config) -> Path:
    """Write the curves of the finished run of `config` to its folder. Raises RunError where a checkpoint
    between is not kept."""
    torch.set_num_threads(config.learner.threads)  # more of them wait for each other on a busy machine
    tokenizer = load_tokenizer(config.model.path, trust_remote_code=False)
    curves = ExactCurves(load_task(Path(config.model.path).parent), tokenizer)
    for step, model in _policies(config):
        curves.measure(model, step)
    return curves.write(config, [_step(record) for record in records(config.run.path / "steps.jsonl")])


def _policies(config: Config) -> Iterator[tuple[int, PreTrainedModel]]:
    """The policy before the first step and after each that has a checkpoint, with the number of steps."""
    from hora_rl.learner.engine import load_model
    from hora_rl.learner.export import checkpoint_weights

    model = load_model(config.model, config.learner).eval()
    yield 0, model
    for step in _steps_of(config):
        _, weights = checkpoint_weights(config.run.path, config.run.name, step)
        for name, parameter in model.named_parameters():
            parameter.data.copy_(weights[name])
        yield step, model


def _steps_of(config: Config) -> list[int]:
    """The steps after which the run writes a checkpoint."""
    every, last = config.learner.checkpoint_every, config.learner.steps
    return [*range(every, last, every), last]


def _step(record: dict[str, float]) -> dict[str, float]:
    """A learner's record of a step under the names of the loop's."""
    return {
        "step": record["step"],
        "hits": record["groups/hit"],
        "signal": 1.0 - record["groups/zero_signal"],
        "entropy": record["entropy"] * record["tokens"] / record["rollouts"],
        **{name: record[name] for name in ("rollouts", "tokens", "grad_norm")},
    }
