"""`hora init`: a commented configuration for this machine, and for a task of the user's the files it
needs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.config import Data
from common.datasets import load_dataset
from common.errors import ConfigError
from deploy.preflight.machine import check_writable, gpus
from deploy.tasks import programs

Task = Literal["math", "mine", "code"]
PROBLEMS = 64

TEMPLATE = """\
# A run of HORA on this machine ({machine}).
#   hora check {file}    what it would do, or the first thing that would stop it
#   hora run {file}      trains; Ctrl-C stops it, --resume continues
# docs/reference/configuration.md has every key.
run:
  name: {name}              # its folder is runs/{name}
model:
  path: {model}
  dtype: {dtype}
data:
{data}
rollout:
  prompts_per_batch: {prompts}   # Γ: prompts of one optimizer step
  group_size: 16          # G: Γ·G rollouts make a batch, whatever the rule
  pre_rollouts: 4         # G0: rollouts of Phase A; the others go where one more is most likely to be a hit
  shards: 4               # parts of a batch that are allocated on their own, so that they overlap
  max_staleness: 1        # generation may run one step ahead; 0 is the synchronous algorithm
  max_prompt_tokens: {prompt_tokens}
  max_response_tokens: {response_tokens}
allocation:
  rule: hit_utility       # HORA; `uniform` is plain GRPO with the same budget
{reward}{numbers}learner:
  steps: {steps}
  tokens_per_microbatch: {microbatch}
  optimizer:
    learning_rate: {rate}
  checkpoint_every: 10
"""

REWARD = '''\
"""A reward of your own. It runs in a process of its own, once for each completion."""


def score(problem: str, completion: str, answer: str) -> float:
    """1.0 where the completion ends with the answer, else 0.0. Change it to what your task asks for."""
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
TINY_CODE = {
    "machine": "no GPU, so the demo's model of 0.2M parameters that writes programs",
    "model": "deploy/demo/programs/model   # a Hugging Face folder or hub name",
    "response_tokens": 96,
    "rate": "2.0e-4",
}


@dataclass(frozen=True, slots=True)
class Machine:
    """What suits this machine: `gpus` cards, which `run.resources: auto` divides, or CPUs and the demo's
    model."""

    gpus: int

    @property
    def values(self) -> dict[str, object]:
        if not self.gpus:
            return {
                "machine": "no GPU, so the demo's model of 0.8M parameters",
                "model": "deploy/demo/model       # a Hugging Face folder or hub name",
                "dtype": "float32",
                "prompts": 40, "prompt_tokens": 32, "response_tokens": 128, "steps": 40,
                "numbers": "generator:\n  replicas: 1\n", "microbatch": 8192, "rate": "1.0e-4",
            }  # fmt: skip
        return {
            "machine": f"{self.gpus} GPUs, divided by `hora run`: `hora check` says how",
            "model": "Qwen/Qwen2.5-1.5B-Instruct   # a Hugging Face folder or hub name",
            "dtype": "bfloat16",
            "prompts": 60, "prompt_tokens": 2048, "response_tokens": 2048, "steps": 200,
            "numbers": "generator:\n  enforce_eager: false    # graphs: starts slower, runs faster\n",
            "microbatch": 16384, "rate": "1.0e-6",
        }  # fmt: skip


def initialise(path: Path, task: Task) -> list[Path]:
    """Write the configuration `path`, for task `code` problems with tests beside it, for `mine` problems and
    a reward; the files written.

    Raises ConfigError where one of them exists.
    """
    machine = Machine(len(gpus()))
    name = re.sub(r"[^A-Za-z0-9_]", "_", path.stem)
    texts = {path: _configuration(path, name, task, machine)}
    if task == "mine":
        texts[_problems(path, name)] = _rows()
        texts[path.with_name(f"{name}_reward.py")] = REWARD
    elif task == "code":
        texts[_problems(path, name)] = _programs(in_words=machine.gpus > 0)
    for file in texts:
        if file.exists():
            raise ConfigError(f"{file} exists already: choose another name, or remove it")
        check_writable(file.parent, "FILE")
    for file, text in texts.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return list(texts)


def _configuration(path: Path, name: str, task: Task, machine: Machine) -> str:
    words = "" if machine.gpus else "\n  system: null            # this model's vocabulary has no words"
    data, reward = "  path: arithmetic        # or a JSONL file, or a Hugging Face data set" + words, ""
    if task == "mine":
        data = f"  path: {_problems(path, name).name}   # a line each: problem and answer" + words
        reward = (
            "reward:                   # found from the working folder: call hora in that of this file\n"
            f'  weights: {{"{name}_reward:score": 1.0}}\n'
            f"  success: {name}_reward:score      # what Phase A counts, where it is at least success_at\n"
        )
    elif task == "code":
        data = f"  path: {_problems(path, name).name}   # a line each: problem, tests and solution" + words
        reward = CODE
    elif machine.gpus:
        data = "  path: hiyouga/math12k   # MATH12k: the MATH problems that are not in MATH500"
    values = machine.values | (TINY_CODE if task == "code" and not machine.gpus else {})
    return TEMPLATE.format(file=path, name=name, data=data, reward=reward, **values)


def _problems(path: Path, name: str) -> Path:
    return path.with_name(f"{name}_problems.jsonl")


def _programs(*, in_words: bool) -> str:
    """Chains of operations with their tests, as the demo's model knows them or in words."""
    rows = programs.rows(0, in_words=in_words)["train"][:PROBLEMS]
    return "".join(json.dumps(row) + "\n" for row in rows)


def _rows() -> str:
    """Sums, which the demo's model can learn, as an example of the form."""
    rows = load_dataset(Data(path="arithmetic", limit=PROBLEMS)).rows
    return "".join(json.dumps({"problem": row.problem, "answer": row.answer}) + "\n" for row in rows)
