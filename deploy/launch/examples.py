"""The first held-out problems of a run, each with a completion before and after training."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from hora_rl.common.config import Config
from hora_rl.common.data.rewards import usable_held_out
from hora_rl.common.errors import ConfigError
from hora_rl.deploy.launch.evaluation import samples_file
from hora_rl.evaluation.benchmarks import Benchmark, held_out
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.samples import first_samples

NUMBER = 3
LONGEST = 100
"""Characters of a text to print. Longer completions show their end, which holds the answer."""


class Said(TypedDict):
    """The first completion of a problem, and its number of hits among `samples`."""

    text: str
    success: bool
    hits: int
    samples: int


class Example(TypedDict):
    problem: str
    answer: object
    before: Said
    after: Said


def read_examples(config: Config, run_dir: Path, results: list[Result]) -> list[Example]:
    """Examples from the first and the last evaluation. Empty for fewer than two, or if problems or samples
    are missing."""
    if len(results) < 2:
        return []
    try:
        rows, benchmark = usable_held_out(config).rows[:NUMBER], held_out(config.evaluation)
        before, after = (_said(benchmark, run_dir, result) for result in (results[0], results[-1]))
    except (ConfigError, OSError):
        return []
    return [
        Example(problem=r.problem, answer=r.answer, before=before[r.index], after=after[r.index])
        for r in rows
        if r.index in before and r.index in after
    ]


def _said(benchmark: Benchmark, run_dir: Path, result: Result) -> dict[int, Said]:
    samples = first_samples(samples_file(run_dir / "evaluation", benchmark, result.step))
    hits = dict(zip(result.problems, result.correct, strict=True))
    return {
        i: Said(text=samples[i].text, success=samples[i].success, hits=hits[i], samples=result.samples)
        for i in samples.keys() & hits.keys()
    }


def show_examples(examples: list[Example], console: Console) -> None:
    """Print each problem on a line, followed by its two completions."""
    for example in examples:
        console.print(Text(f"{_start(example['problem'])}   (answer {_start(str(example['answer']))})"))
        for when, said in (("before", example["before"]), ("after", example["after"])):
            mark, colour = ("hit", "green") if said["success"] else ("miss", "red")
            line = Text(f"  {when:<8}")
            line.append(f"{mark:<6}", colour).append(f"{said['hits']:>3} of {said['samples']}   ")
            console.print(line.append(_end(said["text"])), soft_wrap=True)


def _start(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _end(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"…{line[1 - LONGEST :]}"
