"""The exact learning curves of a cell, as the loop of one process and the whole stack both write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hora_rl.common.config import Config
from hora_rl.common.files import replace_text
from research.tasks.recall import KS, ExactSuccess, RecallTask

CURVES = "curves.json"


class ExactCurves:
    """Pass@K of every set of a recall task over steps, and each prompt's success at the newest of them."""

    def __init__(self, task: RecallTask, tokenizer: PreTrainedTokenizerBase) -> None:
        self.sets = {name: ExactSuccess(task, name, tokenizer) for name in task.sets}
        self._curves: dict[str, list[dict[str, float]]] = {name: [] for name in self.sets}
        self._success: dict[str, list[float]] = {}

    def measure(self, model: PreTrainedModel, step: int) -> None:
        """Add the figures of `model`, which is the policy after `step` steps."""
        for name, exact in self.sets.items():
            success = exact(model)
            self._curves[name].append({"step": step, **_figures(success)})
            self._success[name] = success.sum(axis=1).tolist()

    def write(self, config: Config, steps: Sequence[Mapping[str, float]], **more: float) -> Path:
        """Write the record of the cell that ran `config`, with what its optimizer steps found and `more`."""
        found = {
            "arm": config.run.name.rpartition("-seed")[0],
            "seed": config.run.seed,
            "curves": self._curves,
            "success": self._success,
            "steps": steps,
            **more,
        }
        path = config.run.path / CURVES
        replace_text(path, json.dumps(found))
        return path


def _figures(success: np.ndarray) -> dict[str, float]:
    """Pass@K over prompts of success (n, R) by right answer, and how many right answers are in use (exp of
    their entropy)."""
    total = success.sum(axis=1)
    share = success / np.maximum(total, 1e-300)[:, None]
    ways = np.exp(-(share * np.log(np.maximum(share, 1e-300))).sum(axis=1))
    return {
        **{f"pass@{k}": float(np.mean(1 - (1 - total) ** k)) for k in KS},
        "ways": float(ways.mean()),
    }
