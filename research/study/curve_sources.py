"""Where a cell's curve comes from: exact success of a recall task, in the loop or from a run's checkpoints,
or Pass@K sampled by the evaluations of `hora run`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.errors import ConfigError
from hora_rl.common.files import replace_text
from hora_rl.evaluation.benchmarks import held_out
from hora_rl.evaluation.pass_at_k import pass_at_k
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import Run, RunFolderError, check_same_problems, records
from research.report.curves import Curve, columns, curve_of
from research.tasks.recall import TRAINED, ExactSuccess, RecallTask, SampledSuccess, load_task

CURVES = "curves.json"


class TaskCurves:
    """Pass@K of every set of a recall task over steps: exact, or sampled on the sets that are not trained.

    `rates` is the exact success of the trained prompts, None where it can only be sampled.
    """

    def __init__(self, task: RecallTask, tokenizer: PreTrainedTokenizerBase, most: int) -> None:
        """`most` is the number of tokens after which a sampled completion is cut."""

        def success(name: str) -> ExactSuccess | SampledSuccess:
            if task.exact:
                return ExactSuccess(task, name, tokenizer)
            return SampledSuccess(task, name, tokenizer, most)

        self._sets = {name: success(name) for name in task.measured}
        trained = self._sets.get(TRAINED)
        self.rates = trained if isinstance(trained, ExactSuccess) else None
        self._curves: dict[str, list[dict[str, float]]] = {name: [] for name in self._sets}

    def measure(self, model: PreTrainedModel, step: int) -> None:
        """Add the figures of `model`, which is the policy after `step` steps."""
        for name, success in self._sets.items():
            self._curves[name].append({"step": step, **success.figures(model)})

    def write(self, config: Config, steps: Sequence[Mapping[str, float]], **more: float) -> Path:
        """Write the record of the cell that ran `config`, with the records of its optimizer steps and
        `more`."""
        record = {
            "arm": config.run.name.rpartition("-seed")[0],
            "seed": config.run.seed,
            "curves": self._curves,
            "steps": steps,
            **more,
        }
        path = config.run.path / CURVES
        replace_text(path, json.dumps(record))
        return path


def exact_curve(config: Config) -> Curve:
    """The exact curve of a finished cell, computed from its checkpoints where its folder lacks it. Raises
    RunError where one is not kept."""
    path = config.run.path / CURVES
    if not path.exists():
        torch.set_num_threads(config.learner.threads)  # more of them wait for each other on a busy machine
        tokenizer = load_tokenizer(config.model.path, trust_remote_code=False)
        task = load_task(Path(config.model.path).parent)
        curves = TaskCurves(task, tokenizer, config.rollout.max_response_tokens)
        for step, model in _policies(config):
            curves.measure(model, step)
        curves.write(config, _training(config.run.path))
    return curve_of(json.loads(path.read_text()))


def check_kept(config: Config) -> None:
    """Raise ConfigError where the run would drop checkpoints that its curve needs."""
    needed, kept = len(_steps_of(config)), config.learner.keep_checkpoints
    if kept < needed:
        raise ConfigError(
            f"{config.run.name}: learner.keep_checkpoints ({kept}) drops checkpoints of which the curve is "
            f"made; set it to {needed}, or learner.checkpoint_every higher"
        )


def _policies(config: Config) -> Iterator[tuple[int, PreTrainedModel]]:
    """The policy before the first step and after each that has a checkpoint, with the number of steps."""
    from hora_rl.learner.checkpoints.export import checkpoint_weights
    from hora_rl.learner.model.loading import load_model

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


def _training(folder: Path) -> list[dict[str, float]]:
    """A learner's records of steps under the names of the loop's."""
    return [
        {
            "step": record["step"],
            "hits": record["groups/hit"],
            "signal": 1.0 - record["groups/zero_signal"],
            "entropy": record["entropy"] * record["tokens"] / record["rollouts"],
            "seconds": record["time/step"],
            **{name: record[name] for name in ("rollouts", "tokens", "grad_norm")},
        }
        for record in records(folder / "steps.jsonl")
    ]


class SampledCurves:
    """Curves of runs evaluated on the same held-out problems, before and after training: an evaluation
    between samples from several versions."""

    def __init__(self, name: str) -> None:
        """`name` is that of the set of problems."""
        self._name, self._results = name, list[Result]()

    def __call__(self, config: Config, run: Run) -> Curve:
        """Raises RunFolderError for a run without both evaluations, or on other problems than the runs
        before."""
        name, steps = held_out(config.evaluation).name, (0, config.learner.steps)
        results = {r.step: r for r in run.results if r.benchmark == name}
        if absent := [step for step in steps if step not in results]:
            raise RunFolderError(f"not evaluated at step {absent[0]}")
        both = [results[step] for step in steps]
        check_same_problems([*self._results, *both])
        self._results += both
        values = {
            f"pass@{k}": np.stack([pass_at_k(r.correct, r.samples, k) for r in both])
            for k in config.evaluation.k
        }
        return Curve(np.array(steps, float), {self._name: values}, columns(_training(config.run.path)))
