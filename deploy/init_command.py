"""`hora init`: write a commented configuration for this machine, and example files for the chosen task."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml

from hora_rl.actors.data.datasets import load_dataset
from hora_rl.common.config import DataConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import ROOT, from_args
from hora_rl.common.model.pretrained import obtain
from hora_rl.deploy.checks.estimate import Estimate, ModelShape
from hora_rl.deploy.checks.findings import plural
from hora_rl.deploy.checks.hardware import fastest_dtype, without_bfloat16
from hora_rl.deploy.checks.machine import check_writable, gpus
from hora_rl.deploy.checks.memory import estimate_of, fits_cards
from hora_rl.deploy.checks.resources import Card, choose, filled, read_cards

Task = Literal["math", "mine", "code"]
PROBLEMS = 64

TEMPLATE = """\
# A run of HORA on this machine ({machine}).
#   hora check {file}    what the run would use, or the first problem that would stop it
#   hora run {file}      trains; Ctrl-C stops it, --resume continues
# docs/reference/configuration.md has every key.
{note}run:
  name: "{name}"            # its folder is runs/{name}
model:
  path: {model}
  dtype: {dtype}
data:
{data}
rollout:
  prompts_per_batch: {prompts}   # Γ: prompts of one optimizer step
  group_size: 16          # G: a batch has Γ·G rollouts under every rule
  pre_rollouts: 4         # G0: rollouts of Phase A; the others go where one more is most likely to be a hit
  shards: 4               # parts of a batch, allocated separately so that they overlap
  max_staleness: 1        # generation may run one step ahead; 0 is the synchronous algorithm
  max_prompt_tokens: {prompt_tokens}
  max_response_tokens: {response_tokens}
allocation:
  rule: hit_utility       # HORA; `uniform` is plain GRPO with the same budget
{reward}{numbers}learner:
  steps: {steps}
{learner}  optimizer:
    learning_rate: {rate}
  checkpoint_every: 10
"""

REWARD = '''\
"""An example reward. It runs in a separate process, once per completion."""


def score(problem: str, completion: str, answer: str) -> float:
    """1.0 if the completion ends with the answer, else 0.0. Adapt it to your task."""
    found = completion.replace("</answer>", "").strip()
    return float(found.endswith(answer))
'''


CODE = """\
reward:
  weights: {code_tests: 1.0}   # the last code block of a completion, run against its row's tests
  answer: final
  code_tests:
    seconds: 2.0          # processor time of a program for one test
    memory_mib: 256
"""
DEMO: dict[str, object] = {
    "machine": "no GPU, so the demo's model of 0.8M parameters",
    "model": "deploy/demo/model       # a Hugging Face folder or hub name",
    "note": "", "dtype": "float32", "prompts": 40, "prompt_tokens": 32, "response_tokens": 128, "steps": 40,
    "numbers": "generator:\n  replicas: 1\n", "learner": "  tokens_per_microbatch: 8192\n",
    "rate": "1.0e-4",
}  # fmt: skip
TINY_CODE: dict[str, object] = {
    "machine": "no GPU, so the demo's model of 0.2M parameters that writes programs",
    "model": "deploy/demo/programs/model   # a Hugging Face folder or hub name",
    "response_tokens": 96,
    "rate": "2.0e-4",
}
OWN: dict[str, object] = {
    "machine": "no GPU", "prompts": 8, "prompt_tokens": 512, "response_tokens": 256,
    "learner": "  tokens_per_microbatch: 2048\n", "rate": "1.0e-5",
}  # fmt: skip
NOTHING_FITS = "no model that `hora init` knows fits these GPUs; `hora check` says how much is missing"


@dataclass(frozen=True, slots=True)
class Plan:
    """A model and its training settings on GPUs. `learner` holds more lines of that section. `shape` lets the
    memory check run without a download. The plan fits with micro-batches of `least` tokens; a run takes
    larger ones where memory allows."""

    model: str
    shape: ModelShape | None
    least: int
    rate: str
    learner: str = ""

    @property
    def values(self) -> dict[str, object]:
        return {
            "model": f"{self.model}   # a Hugging Face folder or hub name",
            "dtype": "bfloat16",
            "prompts": 60, "prompt_tokens": 2048, "response_tokens": 2048, "steps": 200,
            "numbers": "",
            "learner": self.learner, "rate": self.rate,
        }  # fmt: skip

    def fits(self, cards: Sequence[Card]) -> bool:
        """Whether the memory check accepts this plan on `cards` under `run.resources: auto`. Raises
        ConfigError if the model's shape cannot be read."""
        texts = {"file": "", "machine": "", "note": "", "name": "hora", "data": "  path: arithmetic"}
        config = from_args(yaml.safe_load(TEMPLATE.format(**texts, reward="", **self.values)))
        config = filled(config, learner={"tokens_per_microbatch": self.least})
        if self.shape is not None:
            estimate: Estimate | None = Estimate(config, self.shape)
        else:
            obtain(config.model.path)
            estimate = estimate_of(config)
        if estimate is None:
            raise ConfigError(
                f"--model {self.model}: no language model can be read there; name a folder or a hub name"
            )
        return fits_cards(choose(estimate, cards), cards).level == "ok"


LORA = """\
  lora:                   # trains an adapter: full weights need more memory than these GPUs have
    rank: 16
    alpha: 32             # alpha/rank is the factor of B·A
"""
LORA_RATE = "1.0e-5   # adapters usually take about ten times the rate of full weights"
FEW_LOGITS = "  logit_chunk: 64         # tokens whose logits exist at a time: fewer take less memory\n"
BIG, SMALL = "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"
QWEN_BIG = ModelShape(1_543_714_304, 0, 28, 1536, 8960, 256, 1536, 151_936)
QWEN_SMALL = ModelShape(494_032_768, 8_798_208, 24, 896, 4864, 128, 896, 151_936)
PLANS = (
    Plan(BIG, QWEN_BIG, 8192, "1.0e-6"),
    Plan(BIG, replace(QWEN_BIG, adapter=18_464_768), 8192, LORA_RATE, LORA),
    Plan(SMALL, QWEN_SMALL, 4096, LORA_RATE, FEW_LOGITS + LORA),
)
"""In order of decreasing memory."""
WORDS = {
    "a": "add {} to it",
    "s": "subtract {} from it",
    "m": "multiply it by {}",
    "d": "divide it by {}, rounding down",
    "r": "take its remainder after division by {}",
}
SUMS = """\
  path: arithmetic:1-2:spaced      # or a JSONL file, or a Hugging Face data set, without the next line
  template: "What is {problem}?"   # makes a question of a sum"""
LENIENT = """\
reward:
  weights: {accuracy: 1.0}
  answer: lenient         # the last number or expression of the completion
"""


def initialise(path: Path, task: Task, model: str | None = None) -> list[Path]:
    """Write the configuration `path`; also problems with tests for task `code`, problems and a reward for
    `mine`. `model` is a value of `model.path`; None chooses a model that fits this machine. Returns the
    written files. Warns on stderr if no model fits the GPUs. Raises ConfigError if a file exists."""
    cards, name = read_cards(gpus()), _name(path.stem)
    plans = PLANS if model is None else [replace(plan, model=model, shape=None) for plan in PLANS]
    plan = next((plan for plan in plans if plan.fits(cards)), None) if cards else None
    if cards:
        values = (plan or plans[-1]).values | {
            "dtype": "float16         # these GPUs have no bfloat16" if without_bfloat16() else "bfloat16",
            "machine": f"{plural(len(cards), 'GPU')}, divided by `hora run`: `hora check` says how",
            "note": "" if plan else f"# Too large for this machine: {NOTHING_FITS}.\n",
        }
    elif model:
        values = DEMO | OWN | {"model": model, "dtype": fastest_dtype()}
    else:
        values = DEMO | TINY_CODE if task == "code" else DEMO
    words = bool(cards or model)  # the demo's model knows no language
    data, reward = _task(task, name, words=words, hub=bool(cards))
    texts = {path: TEMPLATE.format(file=path, name=name, data=data, reward=reward, **values)}
    if task != "math":
        texts[path.with_name(f"{name}_problems.jsonl")] = _problems(task, in_words=words)
    if task == "mine":
        texts[path.with_name(f"{name}_reward.py")] = REWARD
    for file in texts:
        if file.exists():
            raise ConfigError(f"{file} exists already: choose another name, or remove it")
        check_writable(file.parent, "FILE")
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if cards and not plan:
        print(f"hora: {NOTHING_FITS}", file=sys.stderr)
    return list(texts)


def _name(stem: str) -> str:
    """A valid `run.name`, also the prefix of the task's files: at most 64 characters, no leading `_`."""
    return re.sub(r"[^A-Za-z0-9_]", "_", stem).lstrip("_")[:64] or "run"


def _task(task: Task, name: str, *, words: bool, hub: bool) -> tuple[str, str]:
    """The lines of `data` and `reward`. `words`: whether the model knows language. `hub`: whether its
    problems come from the hub."""
    plain = "" if words else "\n  system: null            # this model's vocabulary has no words"
    if task == "mine":
        return f"  path: {name}_problems.jsonl   # a line each: problem and answer{plain}", (
            "reward:                   # found from the working folder: call hora in that of this file\n"
            f'  weights: {{"{name}_reward:score": 1.0}}\n'
            f"  success: {name}_reward:score      # what Phase A counts, where it is at least success_at\n"
        )
    if task == "code":
        return f"  path: {name}_problems.jsonl   # a line each: problem, tests and solution{plain}", CODE
    if hub:
        return "  path: hiyouga/math12k   # MATH12k: the MATH problems that are not in MATH500", ""
    if words:
        return SUMS, LENIENT
    return f"  path: arithmetic        # or a JSONL file, or a Hugging Face data set{plain}", ""


def _problems(task: Task, *, in_words: bool) -> str:
    """Example rows: sums, which the demo's model can learn, or chains of operations with their tests, in the
    demo model's notation or in words."""
    if task == "code":
        lines = (ROOT / "deploy/demo/programs/train.jsonl").read_text().splitlines()[:PROBLEMS]
        rows = [json.loads(line) for line in lines]
        for row in rows if in_words else ():  # `a4m3` in English
            operations = zip(row["problem"][::2], row["problem"][1::2], strict=True)
            steps = " ".join(f"Then {WORDS[letter].format(number)}." for letter, number in operations)
            row["problem"] = f"Write a program that reads an integer x. {steps} Print the result."
    else:
        sums = load_dataset(DataConfig(path="arithmetic", limit=PROBLEMS)).rows
        rows = [{"problem": row.problem, "answer": row.answer} for row in sums]
    return "".join(json.dumps(row) + "\n" for row in rows)
