"""Tasks for a pretrained language model: SmolLM2 adds and subtracts after three examples, names a
multiple, or solves word problems with working.

    python -m research.tasks.pretrained OUT [--task arithmetic] [--seed 0]

No warm start: success rates are those of the model. All prompts of a task have the same number of tokens, and
a line break ends a completion. Right answers without working have the same number of tokens too, so their
success is exact by teacher forcing. OUT has the files of `research.tasks.build`.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.load import load
from hora_rl.common.model.pretrained import obtain
from research.gradients.bank import SHOTS
from research.tasks.build import save_task
from research.tasks.recall import TRAINED, RecallTask
from research.tasks.reward import ANY
from tools.demo_models import new_folder

SUMS = "3 + 4 = 7\n52 - 17 = 35\n6 * 12 = 72\n{{ messages[-1]['content'] }} ="
MULTIPLES = (
    "a multiple of 3 between 10 and 28: 21\na multiple of 12 between 20 and 92: 60\n"
    "a multiple of 7 between 31 and 73: 49\na multiple of {{ messages[-1]['content'] }}:"
)
WORKED = f"{SHOTS}Q: {{{{ messages[-1]['content'] }}}}\nA:"
LINE_BREAK = "Ċ"
"""The token of a line break in a vocabulary of bytes."""
OF_EACH = 300
"""Sums, and as many differences; half of each are trained."""
TRAINED_PROBLEMS, HELD_OUT_PROBLEMS = 300, 32
NAMES = ("Tom", "Max", "Sam", "Bob", "Kim", "Lee", "Dan", "Joe")
THINGS = ("apples", "books", "cards", "eggs", "stamps", "coins", "cups", "toys")
"""Each a token."""
RIGHT = 6
"""Right answers of a question for a multiple."""


def arithmetic(seed: int) -> RecallTask:
    """Sums and differences of two numbers of two digits whose result has two digits."""
    rng, numbers = np.random.default_rng([seed, 5]), range(10, 100)
    added = [(f"{a} + {b}", a + b) for a in numbers for b in numbers if a + b < 100]
    taken = [(f"{a} - {b}", a - b) for a in numbers for b in numbers if a - b >= 10]
    drawn = [of[i] for of in (added, taken) for i in rng.permutation(len(of))[:OF_EACH]]
    sets = {TRAINED: tuple(range(0, 2 * OF_EACH, 2)), "held-out": tuple(range(1, 2 * OF_EACH, 2))}
    questions, right = tuple(q for q, _ in drawn), tuple((str(value),) for _, value in drawn)
    return RecallTask("smollm2", questions, right, sets, form=" {}")


def multiples(seed: int) -> RecallTask:
    """Every multiple of a digit between two numbers is right: six for each of the 301 prompts."""
    drawn = [(k, x) for k in range(3, 10) for x in range(10, 100 - RIGHT * k) if x % k]
    drawn = [drawn[i] for i in np.random.default_rng([seed, 6]).permutation(len(drawn))]
    sets = {TRAINED: tuple(range(0, len(drawn), 2)), "held-out": tuple(range(1, len(drawn), 2))}
    questions = tuple(f"{k} between {x} and {x + RIGHT * k}" for k, x in drawn)
    right = tuple(tuple(str((x // k + i) * k) for i in range(1, RIGHT + 1)) for k, x in drawn)
    return RecallTask("multiples", questions, right, sets, form=" {}")


def problems(seed: int) -> RecallTask:
    """Word problems of one step; a right completion is any text that ends with the answer."""
    rng = np.random.default_rng([seed, 7])
    answers = dict[str, int]()
    while len(answers) < TRAINED_PROBLEMS + HELD_OUT_PROBLEMS:
        name, thing = rng.choice(NAMES), rng.choice(THINGS)
        a, b, few, many = (int(rng.integers(*of)) for of in ((50, 90), (11, 50), (2, 6), (11, 20)))
        added = (f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have?", a + b)
        taken = (f"{name} has {a} {thing} and gives away {b}. How many {thing} are left now?", a - b)
        boxes = f"{name} has {few} boxes with {many} {thing} in each. How many are there in all?"
        question, answer = (added, taken, (boxes, few * many))[len(answers) % 3]
        answers[question] = answer
    sets = {TRAINED: tuple(range(TRAINED_PROBLEMS)), "held-out": tuple(range(TRAINED_PROBLEMS, len(answers)))}
    right = tuple((str(answer),) for answer in answers.values())
    return RecallTask("problems", tuple(answers), right, sets, form=f"{ANY} The answer is {{}}.")


TASKS = {
    "arithmetic": (arithmetic, SUMS),
    "multiples": (multiples, MULTIPLES),
    "problems": (problems, WORKED),
}


def build(out: Path, name: str = "arithmetic", seed: int = 0) -> dict[str, object]:
    """Make the task `name` in the new folder `out`; returns its rates, as `research.tasks.build` does.

    Raises FileExistsError when `out` holds files already, ConfigError where the model cannot be downloaded.
    """
    new_folder(out)
    path = load("smollm2").model.path
    obtain(path)
    tokenizer = load_tokenizer(path)
    make, template = TASKS[name]
    tokenizer.chat_template, tokenizer.eos_token = template, LINE_BREAK
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.config.eos_token_id = tokenizer.eos_token_id
    return save_task(model, tokenizer, make(seed), out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a recall task of SmolLM2.")
    parser.add_argument("out", type=Path, help="new folder for the task")
    parser.add_argument("--task", choices=TASKS, default="arithmetic")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(json.dumps(build(arguments.out, arguments.task, arguments.seed), indent=1))


if __name__ == "__main__":
    main()
