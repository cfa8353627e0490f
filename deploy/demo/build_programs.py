"""Build the code task: its data sets, and a model warm-started on programs.

    python -m hora_rl.deploy.demo.build_programs OUT [--seed 0]

Writes the model (0.2 million parameters) to OUT/model, and the data sets OUT/train.jsonl and
OUT/held-out.jsonl. Built `deploy/demo/programs`; takes a few minutes on one CPU thread.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
import typer

from hora_rl.deploy.demo import programs_task as programs
from hora_rl.deploy.demo.build import MAX_TOKENS, imitate, make_model, new_folder, save
from hora_rl.deploy.demo.tokenizer import make_tokenizer

STEPS = 700
HEADS, LAYERS = 2, 3


def build(out: Path, seed: int = 0, steps: int = STEPS) -> None:
    """Build the task in the new folder `out`. Raises FileExistsError if it contains files."""
    new_folder(out)
    programs.write(out, seed)
    tokenizer = make_tokenizer(MAX_TOKENS)
    model = make_model(tokenizer, seed, HEADS, LAYERS)
    chance = random.Random(f"author:{seed}")
    shown = (
        (chain.problem, programs.completion(chain.misremembered(chance).program))
        for chain in programs.chains(seed + 1)
    )
    torch.set_num_threads(1)
    imitate(model, tokenizer, shown, steps)
    save(model, tokenizer, out / "model")


if __name__ == "__main__":
    typer.run(build)
