"""Exact learning curves of a recall task's run through the whole stack, from its checkpoints.

They have the form of those that `deploy.study.loop` writes, so one report compares either. A run's groups
have no exact success rate of their prompt: the weights that sampled them are not all kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedModel

from common.config import Config
from common.errors import ConfigError, RunError
from common.files import replace_text
from common.prompts import load_tokenizer
from deploy.study.loop import CURVES, figures
from deploy.tasks.recall import TASK_FILE, ExactSuccess, load_task


def has_exact_success(config: Config) -> bool:
    """Whether the run trains all weights of a recall task's model and nothing else evaluates it."""
    whole = config.evaluation.path is None and config.learner.lora is None
    return whole and (Path(config.model.path).parent / TASK_FILE).is_file()


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
    task = load_task(Path(config.model.path).parent)
    tokenizer = load_tokenizer(config.model.path, trust_remote_code=False)
    watched = {name: ExactSuccess(task, name, tokenizer) for name in task.sets}
    curves: dict[str, list[dict[str, float]]] = {name: [] for name in watched}
    success: dict[str, list[float]] = {}
    for step, model in _policies(config):
        for name, exact in watched.items():
            rates = exact(model)
            curves[name].append({"step": step, **figures(rates)})
            success[name] = rates.sum(axis=1).tolist()
    found = {
        "arm": config.run.name.rpartition("-seed")[0],
        "seed": config.run.seed,
        "curves": curves,
        "success": success,
        "steps": [_step(json.loads(line)) for line in _lines(config.run.path / "steps.jsonl")],
    }
    replace_text(config.run.path / CURVES, json.dumps(found))
    return config.run.path / CURVES


def _policies(config: Config) -> Iterator[tuple[int, PreTrainedModel]]:
    """The policy before the first step and after each that has a checkpoint, with the number of steps."""
    from learner.checkpoint import checkpoints_in
    from learner.engine import load_model
    from learner.export import checkpoint_weights

    folder = config.run.path
    wanted = _steps_of(config)
    if missing := sorted(set(wanted) - set(checkpoints_in(folder / "checkpoints"))):
        raise RunError(f"{folder}: has no checkpoint of step {missing[0]} any more, so its curve has a hole")
    model = load_model(config).eval()
    yield 0, model
    for step in wanted:
        _, weights = checkpoint_weights(folder, config, step)
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
        "entropy": math.nan,  # of whole completions, which the learner does not record
        **{name: record[name] for name in ("rollouts", "tokens", "grad_norm")},
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
