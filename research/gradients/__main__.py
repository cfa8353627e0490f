"""The effect of an allocation on one step's gradient where right completions differ: an offline study.

    python -m research.gradients bank OUT       # sample word problems from the model
    python -m research.gradients scores OUT     # gradients of hits and misses, as sketches
    python -m research.gradients report OUT --to research/results

Each step continues where it was interrupted. `report` takes the scores that are there; without OUT it draws
the page again from the archive in `--to`. Sizes are in `design.yaml`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hora_rl.common.weights.pretrained import model_folder, obtain
from research.gradients import bank, report, scores
from research.gradients.design import load


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("bank", "scores", "report"))
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--to", type=Path, default=Path("research/results"))
    given = parser.parse_args()
    design = load()
    if given.step == "report":
        archive = given.to / "gradients.npz"
        if given.out:
            report.pack(given.out, design, archive)
        report.write(archive, design, given.to / "gradients.md")
        return
    if given.out is None:
        parser.error(f"{given.step} needs OUT, the folder of the study")
    given.out.mkdir(parents=True, exist_ok=True)
    folder = model_folder(design.model)
    obtain(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if given.step == "bank":
        bank.fill(given.out, design, model, AutoTokenizer.from_pretrained(folder))
    else:
        scores.measure(given.out, design, model, bank.kept(bank.read(given.out), design))


if __name__ == "__main__":
    main()
