"""Build a recall task: its model, warm-started to remember each answer with its probability, and its data
sets.

    python -m research.tasks.build facts OUT [--seed 0]

OUT/model is a Hugging Face folder; OUT/trained.jsonl and the other sets are data sets; OUT/task.json is what
`hora study --loop` reads; OUT/measured.json says how near the model is to the probabilities that were asked
for.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from hora_rl.deploy.demo.build import MAX_TOKENS, descend, make_model, new_folder, save
from hora_rl.deploy.demo.tokenizer import make_tokenizer
from research.tasks.catalogue import TASKS
from research.tasks.recall import (
    KS,
    Demonstrations,
    ExactSuccess,
    RecallTask,
    encode_answer,
    encode_prompts,
    logprobs,
)

STEPS = {"facts": 1600, "pairs": 2000, "many": 1500, "sums": 2400}
BATCH = 128
LEARNING_RATE = 2e-3
DECAY = 400


def build(name: str, out: Path, seed: int = 0, steps: int | None = None) -> dict[str, object]:
    """Make the task `name` in the new folder `out`; returns what was measured.

    Raises FileExistsError when `out` holds files already.
    """
    new_folder(out)
    tokenizer = make_tokenizer(MAX_TOKENS)
    task, demonstrations = TASKS[name](seed)
    model = make_model(tokenizer, seed)
    warm_start(model, tokenizer, task, demonstrations, seed, steps or STEPS[name])
    save(model, tokenizer, out / "model")
    task.save(out)
    measured = measure(model, tokenizer, task)
    (out / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")
    return measured


def warm_start(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    task: RecallTask,
    demonstrations: Demonstrations,
    seed: int,
    steps: int,
) -> None:
    """Supervised learning on demonstrations."""
    rng, prompts = np.random.default_rng([seed, 9]), encode_prompts(task.questions, tokenizer)

    def loss() -> torch.Tensor:
        chosen, answers, weights = demonstrations(rng, BATCH)
        completions = torch.tensor([encode_answer(a, tokenizer) for a in answers])
        nll = -logprobs(model, prompts[chosen], completions).sum(dim=1)
        return (torch.from_numpy(weights).float() * nll).mean()

    descend(model, loss, steps, LEARNING_RATE, DECAY, report_every=200)


def measure(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase, task: RecallTask
) -> dict[str, object]:
    """Of each set: Pass@K, and success at some quantiles over prompts."""
    found: dict[str, object] = {}
    for name in task.sets:
        success = ExactSuccess(task, name, tokenizer)(model).sum(axis=1)
        quantiles = np.quantile(success, (0.05, 0.25, 0.5, 0.75, 0.95))
        found[name] = {
            "prompts": len(success),
            **{f"pass@{k}": round(float(np.mean(1 - (1 - success) ** k)), 4) for k in KS},
            "quantiles": [round(float(q), 4) for q in quantiles],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Build a recall task: a warm-started model and its data sets."
    )
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("out", type=Path, help="new folder for the task")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(json.dumps(build(arguments.task, arguments.out, arguments.seed), indent=1))


if __name__ == "__main__":
    main()
