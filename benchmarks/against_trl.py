"""`hora run` against TRL's GRPOTrainer on the same machine, in turns: rollouts per second, and mean rewards.

    python -m benchmarks.against_trl OUT [--preset smollm2] [--seeds 1] [--rows 32] [-s KEY=VALUE …]

One cell is one side with one seed, in a process of its own: `synchronous-N` is `hora run` (Redis, Serve,
vLLM, verifier, DeepSpeed) with the rule uniform and max_staleness 0, `ahead-N` the same with 1, `trl-N` is
GRPOTrainer, with vLLM in its process on a card (`vllm_mode: colocate`) and transformers' generate on a CPU.
Cells that OUT holds are not run again. Where OUT is a file `research/results/trl-*.json`, it is reported.

Equal on all sides: initial weights, prompts and their order (`common.data.prompt_order`), Γ, G,
temperature, the longest response, rollout.stop, rewards, their weights, advantages (R - mean)/(std + 1e-4),
TRL's `dr_grpo` loss, which at equal group sizes is ours (1/Γ · 1/G · 1/max_response_tokens), AdamW with its
betas, ε, weight decay and clipping, the learning rate of every step, precision (TRL's bfloat16 is autocast
over float32 weights, ours bfloat16 weights with a float32 master copy), and the machine, which
`run.resources: auto` divides. Different: the random numbers of sampling.

On one card: `--preset MINE.yaml -s model.path=Qwen/Qwen2.5-1.5B-Instruct`; TRL 1.16 names vLLM up to 0.31.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

from hora_rl.actors.data.datasets import load_dataset
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.actors.verifier.answers import format_reward, load_extract
from hora_rl.actors.verifier.equality import equal
from hora_rl.common.config import Config
from hora_rl.common.data.prompt_order import Mixture, mixed_rows
from hora_rl.common.data.prompts import load_tokenizer, render, render_text
from hora_rl.common.data.rows import Row
from hora_rl.common.data.special_tokens import stop_tokens
from hora_rl.common.load import dump_yaml, load
from hora_rl.common.model.pretrained import model_folder
from hora_rl.common.processes import processors
from hora_rl.evaluation.report.tables import markdown_table

SETTINGS = (
    "rollout.shards=1",
    "rollout.max_staleness=0",
    "allocation.rule=uniform",
    "allocation.warmup.enabled=false",
    "learner.checkpoint_every=1000",
    "evaluation.path=null",
    "telemetry.http_port=0",
)
STALENESS = {"synchronous": 0, "ahead": 1}
NAMES = {
    "trl": "TRL, GRPOTrainer",
    "synchronous": "HORA, `max_staleness` 0",
    "ahead": "HORA, `max_staleness` 1",
}
OURS = {"reward": "reward", "accuracy": "reward/accuracy"}
TRL = {"reward": "reward", "accuracy": "rewards/accuracy/mean"}
"""Names of a cell's metrics in the records of each side."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One side with one seed; lists over the S steps. `reward`: mean over the batch. `ended`: seconds from
    the start of the command. `wall`: seconds in all."""

    side: str
    seed: int
    reward: list[float]
    accuracy: list[float]
    ended: list[float]
    wall: float

    def rate(self, per_step: int) -> float:
        """Rollouts per second from the end of the first step, which holds preparation, to the last."""
        return per_step * (len(self.ended) - 1) / (self.ended[-1] - self.ended[0])


def cell_of(
    side: str,
    seed: int,
    steps: Sequence[Mapping[str, float]],
    names: Mapping[str, str],
    ended: list[float],
    wall: float,
) -> Cell:
    """The cell of a run's records."""
    metrics = {name: [step[key] for step in steps] for name, key in names.items()}
    return Cell(side=side, seed=seed, ended=ended, wall=wall, **metrics)


def prepare(out: Path, preset: str, overrides: Sequence[str]) -> Config:
    """A copy of model, prompts and configuration for the comparison: none may change between cells."""
    path = out / "config.yaml"
    if path.exists():
        if overrides:
            raise SystemExit(f"{out} has its settings already: leave out -s, or choose another folder")
        return load(str(path))
    config = load(preset, [*SETTINGS, *overrides])
    if config.allocation.needs_counts or config.rollout.max_staleness:
        raise SystemExit("the comparison needs allocation.rule uniform and rollout.max_staleness 0")
    out.mkdir(parents=True, exist_ok=True)
    shutil.copytree(model_folder(config.model.path), out / "model", dirs_exist_ok=True)
    rows = load_dataset(config.data, gold_test(config.reward)).rows
    lines = [json.dumps({"problem": r.problem, "answer": r.answer}) for r in rows]
    (out / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    copied = {
        "data": {"path": str(out / "prompts.jsonl"), "prompt_field": "problem", "answer_field": "answer"},
        "model": {"path": str(out / "model")},
        "run": {"folder": str(out / "runs")},
    }
    sections = {key: getattr(config, key).model_copy(update=values) for key, values in copied.items()}
    path.write_text(dump_yaml(config.model_copy(update=sections), written=True))
    return load(str(path))


def run_ours(out: Path, config: Config, side: str, seed: int) -> Cell:
    """`hora run` to its end; its records are the cell."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    name, began = f"{side}-{seed}", time.time()
    hora = str(Path(sys.executable).with_name("hora"))
    settings = (f"run.seed={seed}", f"run.name={name}", f"rollout.max_staleness={STALENESS[side]}")
    options = [word for setting in settings for word in ("-s", setting)]
    subprocess.run([hora, "run", str(out / "config.yaml"), "--fresh", *options], check=True)
    wall, folder = time.time() - began, out / "runs" / name
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    ended = [e.wall_time - began for e in board.Scalars("reward")]
    return cell_of(side, seed, steps, OURS, ended, wall)


def run_trl(out: Path, config: Config, seed: int, at_once: int) -> Cell:
    """GRPOTrainer in this process, on the card or all processors."""
    began = time.time()
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOTrainer

    torch.set_num_threads(processors())
    tokenizer = load_tokenizer(config.model.path)
    if config.rollout.stop:  # TRL ends a completion at one token
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(stop_tokens(config, tokenizer)[-1])
    ended: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended.append(time.time() - began)

    rows = _ordered(config, seed)
    texts = [render_text(tokenizer, row.problem, config.data) for row in rows]
    for row, text in zip(rows, texts, strict=True):
        assert tokenizer(text)["input_ids"] == render(tokenizer, row.problem, config.data).tolist(), text
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32),
        reward_funcs=_rewards(config, tokenizer),
        args=_arguments(out, config, seed, at_once),
        train_dataset=Dataset.from_dict({"prompt": texts, "gold": [row.answer for row in rows]}),
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    return cell_of("trl", seed, logs, TRL, ended, time.time() - began)


def _ordered(config: Config, seed: int) -> list[Row]:
    """The prompts of all steps, batch after batch, as the coordinator meets them."""
    rows = load_dataset(config.data, gold_test(config.reward)).rows
    size, shuffle = config.rollout.prompts_per_batch, config.data.shuffle
    batches = (mixed_rows(b, size, Mixture((len(rows),)), seed, shuffle) for b in range(config.learner.steps))
    return [rows[row] for batch in batches for _, row in batch]


def _rewards(config: Config, tokenizer: Any) -> list[Any]:
    """The rewards with a weight, of format and accuracy, as our verifier judges them, from the token ids:
    TRL's text lacks special tokens."""
    extract = load_extract(config.reward.answer)

    def texts(completion_ids: list[list[int]]) -> list[str]:
        ends = tokenizer.eos_token_id
        return [tokenizer.decode(ids[:-1] if ids[-1:] == [ends] else ids) for ids in completion_ids]

    def format(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [format_reward(text, config.reward.answer) for text in texts(completion_ids)]

    def accuracy(completion_ids: list[list[int]], gold: list[str], **_: Any) -> list[float]:
        return [_correct(g, extract(t)) for g, t in zip(gold, texts(completion_ids), strict=True)]

    known = {"format": format, "accuracy": accuracy}
    return [known[name] for name in config.reward.weights]


def _correct(gold: str, answer: str | None) -> float:
    if answer is None:
        return 0.0
    return float(equal(gold, answer, maths=True) or False)


def _arguments(out: Path, config: Config, seed: int, at_once: int) -> Any:
    """`at_once`: completions of a micro-batch on a card; on a CPU all of a step's."""
    import torch
    from trl import GRPOConfig

    card = torch.cuda.is_available()
    size = min(at_once, config.rollout.batch_size) if card else config.rollout.batch_size
    if config.rollout.batch_size % size:
        raise SystemExit(
            f"--rows {at_once}: choose a divisor of {config.rollout.batch_size} completions a step"
        )
    rollout, optimizer, objective = config.rollout, config.learner.optimizer, config.learner.objective
    return GRPOConfig(
        output_dir=str(out / f"trl-{seed}"),
        seed=seed,
        max_steps=config.learner.steps,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=rollout.batch_size // size,
        num_generations=rollout.group_size,
        shuffle_dataset=False,
        max_completion_length=rollout.max_response_tokens,
        temperature=rollout.temperature,
        top_p=1.0,
        top_k=0,
        loss_type="dr_grpo",
        scale_rewards="group",
        reward_weights=list(config.reward.weights.values()),
        beta=objective.kl,
        epsilon=objective.clip_low,
        epsilon_high=objective.clip_high,
        optim="adamw_torch",
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type=optimizer.schedule,
        warmup_steps=optimizer.warmup_steps,
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        adam_epsilon=optimizer.epsilon,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        gradient_checkpointing=False,
        use_cpu=not card,
        use_vllm=card,
        vllm_mode="colocate",
        vllm_max_model_length=rollout.max_prompt_tokens + rollout.max_response_tokens,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=objective.importance_cap,
        bf16=config.model.dtype == "bfloat16",
        fp16=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def run_cell(out: Path, config: Config, name: str, rows: int) -> None:
    """Run a cell and keep it; a cell that is there is not run again."""
    path = out / "cells" / f"{name}.json"
    if path.exists():
        return
    side, _, seed = name.partition("-")
    if side not in NAMES or not seed.isdigit():
        raise SystemExit(f"no cell {name!r}: write trl-0, synchronous-0 or ahead-0")
    number = int(seed)
    cell = run_trl(out, config, number, rows) if side == "trl" else run_ours(out, config, side, number)
    if len(cell.reward) != config.learner.steps:
        raise SystemExit(f"{name}: {len(cell.reward)} of {config.learner.steps} steps were recorded")
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(cell)))
    os.replace(fresh, path)


def report(cells: Sequence[Cell], per_step: int) -> str:
    """A row a side, means over seeds; and the difference of mean rewards, HORA's synchronous side minus
    TRL's, with Student's 95% interval. Under one seed all sides meet the same prompts in one order, so seeds
    are pairs."""
    measured = {c.side for c in cells}
    sides = {
        s: sorted((c for c in cells if c.side == s), key=lambda c: c.seed) for s in NAMES if s in measured
    }
    rates = {side: float(np.mean([c.rate(per_step) for c in mine])) for side, mine in sides.items()}
    table = [
        (
            NAMES[side],
            f"{rates[side]:.1f}",
            f"{rates[side] / rates['trl']:.2f}",
            f"{np.mean([c.ended[0] for c in mine]):.0f} s",
            f"{np.mean([c.wall for c in mine]):.0f} s",
            f"{np.mean([c.accuracy[-1] for c in mine]):.0%}",
        )
        for side, mine in sides.items()
    ]
    head = ["", "rollouts/s", "ratio", "start to the first step", "whole command", "success, last step"]
    lines = markdown_table(head, table, numbers=True)
    ours, theirs = ([float(np.mean(c.reward)) for c in sides[side]] for side in ("synchronous", "trl"))
    if len(ours) > 1:
        low, high = ttest_rel(ours, theirs).confidence_interval()
        lines += [
            "",
            f"reward, HORA - TRL: {np.mean(ours) - np.mean(theirs):+.3f} ({low:+.3f} to {high:+.3f})",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of cells, or an archive of them")
    parser.add_argument("--preset", default="smollm2", help="or a file")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=32, help="completions of TRL's micro-batch on a card")
    parser.add_argument("--cell", help="run this cell alone")
    parser.add_argument("-s", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    out = options.out.resolve()
    if out.is_file():
        archive = json.loads(out.read_text())
        sizes = archive["settings"]["rollout"]
        cells = [Cell(**cell) for cell in archive["cells"]]
        print(report(cells, sizes["prompts_per_batch"] * sizes["group_size"]))
        return
    config = prepare(out, options.preset, options.overrides)
    if options.cell:
        run_cell(out, config, options.cell, options.rows)
        return
    for name in (f"{side}-{seed}" for seed in range(options.seeds) for side in NAMES):
        # Each in a process of its own: neither side finds the other's threads, caches or memory.
        rows = ["--rows", str(options.rows)]
        subprocess.run(
            [sys.executable, "-m", "benchmarks.against_trl", str(out), "--cell", name, *rows], check=True
        )
    kept = [out / "cells" / f"{side}-{seed}.json" for seed in range(options.seeds) for side in NAMES]
    print(report([Cell(**json.loads(path.read_text())) for path in kept], config.rollout.batch_size))


if __name__ == "__main__":
    main()
