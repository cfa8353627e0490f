"""The effect of an allocation on one step's gradient where right completions differ: an offline study.

    python -m research.gradients bank OUT       # sample word problems from the model
    python -m research.gradients scores OUT     # gradients of hits and misses, as sketches
    python -m research.gradients report OUT     # the page OUT/gradients.md

Each step continues where it was interrupted. `report` takes the scores that are there; without OUT it prints
the page of `research/results/gradients.npz`. Sizes are in `design.yaml`. For your own model and problems:

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
from research.gradients.design import load

RESULTS = Path("research/results")


def user_bank(out: Path, samples: Path, config: Config, benchmark: str) -> None:
    """The bank of a user's model and problems, with a design that claims nothing."""
    prompts, rollout = bank.of_samples(samples, config, benchmark), config.rollout
    design = load().but(question=[], confirms=[], refutes=[], limits=[], model=config.model.path, min_hits=8)
    keys = ("prompts_per_batch", "group_size", "pre_rollouts")
    design = design.but(**{key: getattr(rollout, key) for key in keys})
    design.save(out)
    bank.write(out, prompts)
    enough = len(bank.kept(prompts, design))
    print(f"{enough} of {len(prompts)} prompts have {design.min_hits} hits and misses")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=("bank", "scores", "report"))
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--config", help="configuration of the samples")
    parser.add_argument("--benchmark", help="problems of the samples")
    parser.add_argument("--samples", type=Path, help="sample file of `hora eval`")
    options = parser.parse_args()
    design = load(options.out)
    if options.step == "report":
        if options.out is None:
            print(report.page(RESULTS / "gradients.npz", design))
            return
        report.pack(options.out, design, options.out / "gradients.npz")
        (options.out / "gradients.md").write_text(report.page(options.out / "gradients.npz", design) + "\n")
        return
    if options.out is None:
        parser.error(f"{options.step} needs OUT, the folder of the study")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.step == "bank" and options.samples:
        if not (options.config and options.benchmark):
            parser.error("--samples needs --config and --benchmark, with which they were made")
        user_bank(options.out, options.samples, load_config(options.config), options.benchmark)
        return
    folder = model_folder(design.model)
    obtain(folder)
    sampled = getattr(design, "dtype", "bfloat16")  # as the run that the bank stands for
    dtype = getattr(torch, sampled) if options.step == "bank" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    if options.step == "bank":
        bank.fill(options.out, design, model, AutoTokenizer.from_pretrained(folder))
    else:
        scores.measure(options.out, design, model, bank.kept(bank.read(options.out), design))


if __name__ == "__main__":
    try:
        main()
    except HoraError as error:
        sys.exit(str(error))
