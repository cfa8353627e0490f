"""What one evaluation found, and its JSON.

`RUN/evaluation/<benchmark>-step<step>.json` is what `hora report` reads; the schema is the dataclass
`Result`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hora_rl.common.errors import ConfigError
from hora_rl.common.types import Prompt
from hora_rl.evaluation.benchmarks import Benchmark
from hora_rl.evaluation.evaluate import Counts
from hora_rl.evaluation.pass_at_k import Estimate, estimates


class ResultError(ConfigError):
    """A result file that cannot be read: names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Result:
    """Counts of one benchmark on one model. Lists are (P,), in the order of the problems; `ks` rises.

    `step` is the number of optimizer steps behind the weights, 0 for the initial policy. `tokens` is the
    total of completion tokens; `formatted` (None where the format reward is not in use) and `cut` (at the
    response limit) count completions. `versions` are the oldest and the newest weight version of the run that
    was sampled, empty where nobody recorded them: an evaluation during training meets those of later steps
    too. `problem_set` is a fingerprint of the problems' texts and gold answers,
    `weights` one of the model's weights (`evaluation.model_weights`); both are empty in results of earlier
    versions, the second where the model is the run's own.
    """

    benchmark: str
    title: str
    model: str
    step: int
    temperature: float
    seed: int
    samples: int
    ks: list[int]
    problems: list[int]
    correct: list[int]
    formatted: int | None
    cut: int
    tokens: int
    problem_set: str = ""
    weights: str = ""
    versions: list[int] = field(default_factory=list)

    @property
    def sampled(self) -> str:
        """Which versions were sampled: `v20`, or `v20 to v23`; nothing where that is not recorded."""
        return span(*self.versions) if self.versions else ""

    @property
    def completions(self) -> int:
        return self.samples * len(self.problems)

    @property
    def format_share(self) -> float | None:
        """Share of completions in the format; None where that is not rewarded."""
        return None if self.formatted is None else self.formatted / self.completions

    def estimates(self) -> list[Estimate]:
        return estimates(self.correct, self.samples, self.ks)


def make_result(
    benchmark: Benchmark,
    counts: Counts,
    problems: Sequence[Prompt],
    model: str,
    step: int,
    temperature: float,
    seed: int,
) -> Result:
    """What `counts` found on `problems`."""
    return Result(
        benchmark=benchmark.name,
        title=benchmark.title,
        model=model,
        step=step,
        temperature=temperature,
        seed=seed,
        samples=counts.samples,
        ks=list(benchmark.ks),
        problems=counts.problems.tolist(),
        correct=counts.correct.tolist(),
        formatted=int(counts.formatted.sum()),
        cut=int(counts.cut.sum()),
        tokens=int(counts.tokens.sum()),
        problem_set=problem_set(problems),
    )


def problem_set(problems: Sequence[Prompt]) -> str:
    """16 hex digits of the problems' texts and gold answers: equal for every model and tokenizer."""
    texts = json.dumps([[p.text, p.judged_by] for p in problems], default=str)
    return hashlib.blake2b(texts.encode(), digest_size=8).hexdigest()


def read_result(path: Path) -> Result:
    """Raises ResultError naming the file and the first thing that is wrong."""
    try:
        raw: dict[str, Any] = {
            "problem_set": "",
            "weights": "",
            "versions": [],
            **json.loads(path.read_text(encoding="utf-8")),
        }
        result = Result(**{f.name: raw[f.name] for f in fields(Result)})
        result.estimates()
    except KeyError as error:
        raise ResultError(f"{path}: not a result of `hora eval`: no key {error}") from error
    except (ValueError, TypeError) as error:
        raise ResultError(f"{path}: not a result of `hora eval`: {error}") from error
    return result


def span(oldest: int, newest: int) -> str:
    """Weight versions in words: `v20`, or `v20 to v23`."""
    return f"v{oldest}" if oldest == newest else f"v{oldest} to v{newest}"
