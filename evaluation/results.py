"""The result of one evaluation and its JSON.

`hora report` reads `RUN/evaluation/<benchmark>-step<step>.json`; its schema is the dataclass `Result`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from hora_rl.common.errors import ConfigError
from hora_rl.common.model.model_files import weights_digest
from hora_rl.common.types import Prompt
from hora_rl.evaluation.benchmarks import Benchmark
from hora_rl.evaluation.evaluate import Counts
from hora_rl.evaluation.pass_at_k import Estimate, estimates


@dataclass(frozen=True, slots=True)
class Result:
    """Counts of one benchmark on one model. Lists are (P,), in problem order; `ks` is ascending.

    `step`: optimizer steps of the weights, 0 for the initial policy. `tokens`: total completion tokens.
    `formatted` (None without a format reward) and `cut` (at the response limit) count completions.
    `versions`: oldest and newest weight version sampled, empty if not recorded; an evaluation during training
    may include later versions. `problem_set` and `weights`: fingerprints of the problems and of the model's
    weights (`model_digest`), empty in older results; `weights` is also empty for the run's model.
    `truncation`: top_p, top_k and min_p, if they left tokens out.
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
    truncation: dict[str, float] = field(default_factory=dict)

    @property
    def sampling(self) -> str:
        """`temperature 0.7, top_p 0.95`."""
        settings = {"temperature": self.temperature, **self.truncation}
        return ", ".join(f"{name} {value:g}" for name, value in settings.items())

    @property
    def sampled(self) -> str:
        """Sampled versions, `v20` or `v20 to v23`; empty if not recorded."""
        return span(*self.versions) if self.versions else ""

    @property
    def completions(self) -> int:
        return self.samples * len(self.problems)

    @property
    def format_share(self) -> float | None:
        """Share of completions in the format; None without a format reward."""
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
    """Fingerprint (16 hex digits) of problem texts and gold answers, independent of model and tokenizer."""
    texts = json.dumps([[p.text, p.judged_by, *p.messages] for p in problems], default=str)
    return hashlib.blake2b(texts.encode(), digest_size=8).hexdigest()


def model_digest(model: str) -> str:
    """`weights_digest` of a folder or a cached hub model, whose path may change; empty if unknown."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if Path(model).is_dir():
        return weights_digest(Path(model)) or ""
    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return ""
    return (weights_digest(Path(cached).parent) or "") if isinstance(cached, str) else ""


def read_result(path: Path) -> Result:
    """Raises ConfigError naming the file and the first error."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        result = Result(**{f.name: raw[f.name] for f in fields(Result) if f.name in raw})
        result.estimates()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: not a result of `hora eval`: {error}") from error
    return result


def span(oldest: int, newest: int) -> str:
    """`v20`, or `v20 to v23`."""
    return f"v{oldest}" if oldest == newest else f"v{oldest} to v{newest}"
