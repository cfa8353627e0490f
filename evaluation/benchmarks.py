"""The paper's four benchmarks with its N and K (section 4), and any other data set by path or name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hora_rl.actors.data.datasets import load_dataset, load_held_out, on_the_hub
from hora_rl.common.config import Config, DataConfig, EvaluationConfig
from hora_rl.common.config.data import is_generated
from hora_rl.common.data.arithmetic import normalised
from hora_rl.common.data.rows import Row
from hora_rl.common.data.table_files import READERS, DataError
from hora_rl.common.errors import ConfigError

_DATA = Path(__file__).resolve().parent / "data"
_TO_256 = (1, 8, 16, 32, 64, 128, 256)
_TO_1024 = (*_TO_256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`samples` is N, `ks` the K of Pass@K. `path`: a file, a Hugging Face name, `arithmetic` or
    `reasoning_gym:TASK` (their held-out splits)."""

    name: str
    title: str
    path: str
    samples: int
    ks: tuple[int, ...]

    @property
    def is_shipped(self) -> bool:
        """Compared by path: a user's file may have the same name."""
        return Path(self.path).resolve() in {Path(b.path).resolve() for b in BENCHMARKS.values()}

    def data(self, like: DataConfig, settings: EvaluationConfig | None = None) -> DataConfig:
        """Its data settings, with prompts rendered like the training prompts `like`. Of a Hugging Face data
        set `settings` names configuration, revision and split."""
        columns = {"prompt_field": "problem", "answer_field": "answer"} if self.is_shipped else {}
        located = settings.on_the_hub if settings and on_the_hub(self.path) else {}
        return like.model_copy(update={**like.held_out(self.path), "limit": None, **columns, **located})

    def sized(self, samples: int | None, ks: tuple[int, ...] | None) -> Benchmark:
        """This benchmark with another N or K list. Raises DataError for a requested K above N; default Ks
        above N are dropped."""
        n = self.samples if samples is None else samples
        if n < 1:
            raise DataError(f"{self.name}: N must be at least 1, not {n}: raise --samples")
        chosen = ks or tuple(k for k in self.ks if k <= n)
        if bad := [k for k in chosen if not 1 <= k <= n]:
            raise DataError(
                f"{self.name}: Pass@{bad[0]} needs K between 1 and N = {n}: raise --samples or lower --k"
            )
        return replace(self, samples=n, ks=tuple(sorted(set(chosen))))


BENCHMARKS = {
    name: Benchmark(name, title, str(_DATA / f"{name}.jsonl"), ks[-1], ks)
    for name, title, ks in (
        ("math500", "MATH500", _TO_256),
        ("amc23", "AMC23", _TO_256),
        ("aime24", "AIME 2024", _TO_1024),
        ("aime25", "AIME 2025", _TO_1024),
    )
}


def find_benchmark(name: str) -> Benchmark:
    """A benchmark by name, file, Hugging Face data set, `arithmetic` or `reasoning_gym:TASK`, the others with
    N and K of MATH500. Raises DataError naming the benchmarks if nothing matches."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if is_generated(name):
        return Benchmark(held_out_name(name), f"{name} (held out)", name, 256, _TO_256)
    path = Path(name)
    if path.is_file():
        return Benchmark(path.stem, path.stem, name, 256, _TO_256)
    if name.count("/") == 1 and path.suffix not in READERS and not name.startswith((".", "/", "~")):
        return Benchmark(name.split("/")[1], name, name, 256, _TO_256)
    raise DataError(
        f"no benchmark {name!r}: use {', '.join(BENCHMARKS)}, arithmetic, reasoning_gym:TASK, a "
        "file or a Hugging Face name"
    )


def find_benchmarks(names: Sequence[str]) -> list[Benchmark]:
    """One benchmark per distinct name. Raises DataError if two would write the same result files."""
    benchmarks = [find_benchmark(name) for name in dict.fromkeys(names)]
    for i, benchmark in enumerate(benchmarks):
        for other in benchmarks[:i]:
            if other.name == benchmark.name:
                raise DataError(
                    f"{other.path} and {benchmark.path} are both named {benchmark.name}: rename a file, or "
                    "evaluate them one after the other with another --out"
                )
    return benchmarks


def held_out(settings: EvaluationConfig) -> Benchmark:
    """The held-out problems of a run's evaluations, with N and K of its configuration."""
    path = settings.path or "held-out"
    title = path if is_generated(path) else Path(path).stem
    return Benchmark(
        held_out_name(path), f"{title} (held out)", settings.path or "", settings.samples, settings.k
    )


def held_out_name(path: str) -> str:
    """Name of results of `evaluation.path`: `arithmetic-2-4` for `arithmetic:2-4`, a file's stem."""
    return path.replace(":", "-") if is_generated(path) else Path(path).stem


def refuse_long(name: str, lengths: Sequence[int], limit: int) -> None:
    """Raise ConfigError for problems longer than `limit` tokens (rollout.max_prompt_tokens): without them
    Pass@K would look like that of all problems."""
    if (longest := max(lengths)) > limit:
        raise ConfigError(
            f"{name}: {sum(n > limit for n in lengths)} of {len(lengths)} prompts are longer than "
            f"rollout.max_prompt_tokens = {limit}; set it to {longest} (-s rollout.max_prompt_tokens="
            f"{longest}) if the model's context holds that and an answer"
        )


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The values of an option such as `1,8,64`. Raises ConfigError for other text."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} ({text}): write whole numbers with commas, e.g. 1,8,64") from None


def known_leaks(config: Config, rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Locations of training rows that equal a problem of a shipped benchmark, of `data.benchmarks` or held
    out, and of that problem, ignoring case, spacing and punctuation at the ends. Raises DataError for a data
    set that cannot be read."""
    paths = (*(b.path for b in BENCHMARKS.values()), *config.data.benchmarks)
    benchmarks = [row for path in paths for row in load_dataset(DataConfig(path=path)).rows]
    if config.evaluation.path is not None:
        benchmarks += load_held_out(config.evaluation, config.evaluated.data).rows
    places: dict[str, str] = {}
    for row in benchmarks:
        places.setdefault(normalised(row.problem), row.location)
    hits = ((row, places.get(normalised(row.problem))) for row in rows)
    return [(row.location, hit) for row, hit in hits if hit is not None]
