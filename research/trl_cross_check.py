"""HORA's `uniform` rule and TRL's GRPOTrainer: same learning curves, rollouts per second, and success by
wall-clock.

    python -m research.trl_cross_check OUT [--preset smollm2] [--seeds 3] [--cell async-0] [-s KEY=VALUE …]

One cell is one side with one seed, in a separate process, and the sides take turns: `ours-N` is `hora run`
(Redis, Serve, vLLM, verifier, DeepSpeed) with max_staleness 0, `async-N` the same with 1, `trl-N` is
GRPOTrainer with transformers' generate. Cells that OUT holds are not run again. When all are there the
figures are written.

Equal on all sides: initial weights, prompts and their order (`common.data.prompt_order`), Γ, G,
temperature, the longest response, rollout.stop, rewards, their weights, advantages (R - mean)/(std + 1e-4),
TRL's `dr_grpo` loss, which at equal group sizes is ours (1/Γ · 1/G · 1/max_response_tokens), AdamW with its
betas, ε, weight decay and clipping, the learning rate of every step, precision (TRL's bfloat16 is autocast
over float32 weights, ours bfloat16 weights with a float32 master copy), and all processors, which
`run.resources: auto` divides. Different: the random numbers of sampling.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hora_rl.common.answers import format_reward, load_extract
from hora_rl.common.config import Config
from hora_rl.common.data.datasets import Row, load_dataset
from hora_rl.common.data.prompt_order import Mixture, mixed_rows
from hora_rl.common.data.prompts import load_tokenizer, render, render_text
from hora_rl.common.data.rewards import gold_test
from hora_rl.common.data.stop_tokens import stop_tokens
from hora_rl.common.equality import math_equal, quick_verdict
from hora_rl.common.load import dump_yaml, load
from hora_rl.common.processes import processors
from hora_rl.common.weights.pretrained import model_folder
from research.trl_cross_check_report import NAMES, OURS, TRL, Cell, cell_of, write_report

SETTINGS = (
    "rollout.shards=1",
    "rollout.max_staleness=0",
    "allocation.rule=uniform",
    "allocation.warmup.enabled=false",
    "learner.checkpoint_every=1000",
    "evaluation.path=null",
    "telemetry.http_port=0",
)
STALENESS = {"ours": 0, "async": 1}


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


def run_trl(out: Path, config: Config, seed: int) -> Cell:
    """GRPOTrainer in this process, on all processors."""
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
        args=_arguments(out, config, seed),
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
    verdict = quick_verdict(gold, answer)
    return float(math_equal(gold, answer) if verdict is None else verdict)


def _arguments(out: Path, config: Config, seed: int) -> Any:
    from trl import GRPOConfig

    rollout, optimizer, objective = config.rollout, config.learner.optimizer, config.learner.objective
    return GRPOConfig(
        output_dir=str(out / f"trl-{seed}"),
        seed=seed,
        max_steps=config.learner.steps,
        per_device_train_batch_size=rollout.batch_size,
        gradient_accumulation_steps=1,
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
        use_cpu=True,
        bf16=config.model.dtype == "bfloat16",
        fp16=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def run_cell(out: Path, config: Config, name: str) -> None:
    """Run a cell and keep it; a cell that is there is not run again."""
    path = out / "cells" / f"{name}.json"
    if path.exists():
        return
    side, _, seed = name.partition("-")
    if side not in NAMES or not seed.isdigit():
        raise SystemExit(f"no cell {name!r}: write ours-0, async-0 or trl-0")
    number = int(seed)
    cell = run_trl(out, config, number) if side == "trl" else run_ours(out, config, side, number)
    if len(cell.reward) != config.learner.steps:
        raise SystemExit(f"{name}: {len(cell.reward)} of {config.learner.steps} steps were recorded")
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(cell)))
    os.replace(fresh, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of cells and figures")
    parser.add_argument("--preset", default="smollm2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cell", help="run this cell alone")
    parser.add_argument("-s", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    out = options.out.resolve()
    config = prepare(out, options.preset, options.overrides)
    if options.cell:
        run_cell(out, config, options.cell)
    else:
        for name in (f"{side}-{seed}" for seed in range(options.seeds) for side in NAMES):
            # Each in a process of its own: neither side finds the other's threads, caches or memory.
            command = [sys.executable, "-m", "research.trl_cross_check", str(out), "--cell", name]
            subprocess.run(command, check=True)
    cells = [json.loads(p.read_text()) for p in sorted((out / "cells").glob("*.json"))]
    seeds = set.intersection(*({c["seed"] for c in cells if c["side"] == side} for side in NAMES))
    if len(seeds) >= 2:
        print(write_report(out, config, [Cell(**c) for c in cells if c["seed"] in seeds]))


if __name__ == "__main__":
    main()
