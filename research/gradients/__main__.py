"""The effect of an allocation on one step's gradient where right completions differ: an offline study.

    python -m research.gradients bank OUT       # sample word problems from the model
    python -m research.gradients scores OUT     # gradients of hits and misses, as sketches
    python -m research.gradients report OUT     # the page OUT/gradients.md

Each step continues where it was interrupted. `report` takes the scores that are there; without OUT it draws
the page of results again from its archive. Sizes are in `design.yaml`. For your own model and problems:

    hora eval MODEL --config mine.yaml --benchmark held-out.jsonl --samples 96
    python -m research.gradients bank OUT --config mine.yaml --benchmark held-out.jsonl \\
        --samples evaluations/held-out-step0.samples.jsonl

makes the bank and OUT/design.yaml, whose sizes can be edited. `rollout.temperature` should be 1.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hora_rl.common.config import Config
from hora_rl.common.errors import HoraError
from hora_rl.common.load import load as load_config
from hora_rl.common.model.pretrained import model_folder, obtain
from research.gradients import bank, report, scores
from research.gradients.design import load, save_own

RESULTS = Path("research/results")


def own_bank(out: Path, samples: Path, config: Config, benchmark: str) -> None:
    """The bank of a model and problems of one's own, with a design that claims nothing."""
    found, rollout = bank.of_samples(samples, config, benchmark), config.rollout
    design = load().but(question=[], confirms=[], refutes=[], limits=[], model=config.model.path, min_hits=8)
    keys = ("prompts_per_batch", "group_size", "pre_rollouts")
    design = design.but(**{key: getattr(rollout, key) for key in keys})
    save_own(out, design)
    bank.write(out, found)
    print(f"{len(bank.kept(found, design))} of {len(found)} prompts have {design.min_hits} hits and misses")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("bank", "scores", "report"))
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--config", help="configuration of the samples")
    parser.add_argument("--benchmark", help="problems of the samples")
    parser.add_argument("--samples", type=Path, help="sample file of `hora eval`")
    given = parser.parse_args()
    design = load(given.out)
    if given.step == "report":
        to = given.out or RESULTS
        if given.out:
            report.pack(given.out, design, to / "gradients.npz")
        report.write(to / "gradients.npz", design, to / "gradients.md")
        return
    if given.out is None:
        parser.error(f"{given.step} needs OUT, the folder of the study")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.step == "bank" and given.samples:
        if not (given.config and given.benchmark):
            parser.error("--samples needs --config and --benchmark, with which they were made")
        own_bank(given.out, given.samples, load_config(given.config), given.benchmark)
        return
    folder = model_folder(design.model)
    obtain(folder)
    dtype = torch.bfloat16 if given.step == "bank" else torch.float32  # a run samples in bfloat16
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    if given.step == "bank":
        bank.fill(given.out, design, model, AutoTokenizer.from_pretrained(folder))
    else:
        scores.measure(given.out, design, model, bank.kept(bank.read(given.out), design))


if __name__ == "__main__":
    try:
        main()
    except HoraError as error:
        sys.exit(str(error))
