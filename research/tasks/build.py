"""Build a recall task: its model, warm-started to remember each answer with its probability, and its data
sets.

    python -m research.tasks.build facts OUT [--seed 0]

OUT/model is a Hugging Face folder; OUT/trained.jsonl and the other sets are data sets; `hora study --loop`
reads OUT/task.json; OUT/measured.json shows how near the model is to the probabilities that were asked for.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from research.tasks.catalogue import TASKS
from research.tasks.recall import (
    ExactSuccess,
    RecallTask,
    encode_completion,
    encode_prompts,
    logprobs,
    pass_at_ks,
)
from tools.demo_models import MAX_TOKENS, descend, make_model, make_tokenizer, new_folder, save

STEPS = {"facts": 1600, "pairs": 2000, "many": 1500, "sums": 2400}
BATCH = 128
LEARNING_RATE = 2e-3
DECAY = 400


def build(name: str, out: Path, seed: int = 0, steps: int | None = None) -> dict[str, object]:
    """Make the task `name` in the new folder `out`; returns Pass@K of each set, and success at some quantiles
    over prompts.

    Raises FileExistsError when `out` holds files already.
    """
    new_folder(out)
    tokenizer = make_tokenizer(MAX_TOKENS)
    task, demonstrations = TASKS[name](seed)
    model = make_model(tokenizer, seed)
    rng, prompts = np.random.default_rng([seed, 9]), encode_prompts(task.questions, tokenizer)

    def loss() -> torch.Tensor:
        chosen, answers, weights = demonstrations(rng, BATCH)
        completions = torch.tensor([encode_completion(task.form.format(a), tokenizer) for a in answers])
        nll = -logprobs(model, prompts[chosen], completions).sum(dim=1)
        return (torch.from_numpy(weights).float() * nll).mean()

    descend(model, loss, steps or STEPS[name], LEARNING_RATE, DECAY, report_every=200)
    return save_task(model, tokenizer, task, out)


def save_task(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: RecallTask, out: Path
) -> dict[str, object]:
    """Write the files of a task; returns its rates, as `build` does, where they are exact."""
    save(model, tokenizer, out / "model")
    task.save(out)
    exact = {s: ExactSuccess(task, s, tokenizer)(model).sum(axis=1) for s in task.sets if task.exact}
    measured: dict[str, object] = {s: _rounded(values) for s, values in exact.items()}
    (out / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")
    return measured


def _rounded(success: NDArray) -> dict[str, object]:
    rates = {name: round(value, 4) for name, value in pass_at_ks(success).items()}
    quantiles = np.quantile(success, (0.05, 0.25, 0.5, 0.75, 0.95)).round(4).tolist()
    return {"prompts": len(success), **rates, "quantiles": quantiles}


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a recall task: a model and its data sets.")
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("out", type=Path, help="new folder for the task")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(json.dumps(build(arguments.task, arguments.out, arguments.seed), indent=1))


if __name__ == "__main__":
    main()
