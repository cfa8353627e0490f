"""A code task over the demo's alphabet: chains of operations to write as a Python program.

    a4m3    ─►    x=int(input())        tests: 20 ─► 72, …
                  x+=4
                  x*=3
                  print(x)

The warm start imitates an author who misremembers some operations: their number is one too small. A prompt's
success rate is the product over its operations, from almost 0 to almost 1. Each operation must be learned
from a program that passed its tests.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hora_rl.common.data.code import FENCE

OPERATIONS = {"a": "x+={}", "s": "x-={}", "m": "x*={}", "d": "x//={}", "r": "x%={}"}
NUMBERS = range(2, 10)
LENGTHS = {1: 0.2, 2: 0.4, 3: 0.4}
"""Share of prompts by their number of operations."""
TESTS = 3
INPUTS = range(20, 1000)
ROWS = {"train": 400, "held-out": 100}

Step = tuple[str, int]


def recall(fact: str) -> float:
    """Probability that the author of a warm start remembers a fact: 1 for two in three facts, 0.3 to 0.7 for
    one in five, 0.005 to 0.04 for the rest. A pure function of the fact."""
    digest = hashlib.blake2b(fact.encode(), digest_size=16).digest()
    kind, level = (int.from_bytes(part, "little") / 2**64 for part in (digest[:8], digest[8:]))
    if kind < 0.65:
        return 1.0
    return 0.3 + 0.4 * level if kind < 0.85 else 0.04 * 0.125**level


@dataclass(frozen=True, slots=True)
class Chain:
    steps: tuple[Step, ...]

    @property
    def problem(self) -> str:
        return "".join(f"{letter}{number}" for letter, number in self.steps)

    @property
    def program(self) -> str:
        lines = [OPERATIONS[letter].format(number) for letter, number in self.steps]
        return "\n".join(["x=int(input())", *lines, "print(x)"])

    def value(self, x: int) -> int:
        for letter, n in self.steps:
            x = {"a": x + n, "s": x - n, "m": x * n, "d": x // n, "r": x % n}[letter]
        return x

    def misremembered(self, chance: random.Random) -> Chain:
        """The chain as the warm start's author remembers it."""
        return Chain(
            tuple((a, n) if chance.random() < recall(f"{a}{n}") else (a, n - 1) for a, n in self.steps)
        )


def completion(program: str) -> str:
    """A completion with a code block. No language name, because each character costs the tiny model a
    token."""
    return f"{FENCE}\n{program}\n{FENCE}"


def chains(seed: int) -> Iterator[Chain]:
    """An endless stream of chains with repeats, determined by the seed."""
    chance = random.Random(f"programs:{seed}")
    while True:
        length = chance.choices(list(LENGTHS), list(LENGTHS.values()))[0]
        yield Chain(tuple((chance.choice("asmdr"), chance.choice(NUMBERS)) for _ in range(length)))


def rows(seed: int) -> dict[str, list[dict[str, object]]]:
    """The data sets by name, without a common problem."""
    source = chains(seed)
    different: dict[Chain, None] = {}
    while len(different) < sum(ROWS.values()):
        different.setdefault(next(source))
    left = iter(different)
    chance = random.Random(f"inputs:{seed}")
    return {name: [_row(next(left), chance) for _ in range(count)] for name, count in ROWS.items()}


def write(folder: Path, seed: int) -> None:
    """Write the data sets as JSON lines: `{"problem", "tests", "solution"}`."""
    for name, problems in rows(seed).items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))


def _row(chain: Chain, chance: random.Random) -> dict[str, object]:
    inputs = chance.sample(INPUTS, TESTS)
    tests = [{"input": f"{x}\n", "output": f"{chain.value(x)}\n"} for x in inputs]
    return {"problem": chain.problem, "tests": tests, "solution": chain.program}
