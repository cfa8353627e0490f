"""`hora plan`: from recorded counts of successes and text options to `allocator.plan`, printed.

Counts are a file, a run's records or a result of `hora eval`.
"""

import codecs
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypedDict

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hora_rl.allocator.planning.forecast import ARMS, arms_within
from hora_rl.allocator.planning.forecast import plan as plan_of
from hora_rl.allocator.planning.table import Plan
from hora_rl.allocator.posterior import Int
from hora_rl.common.errors import ConfigError
from hora_rl.common.files import replace_text
from hora_rl.evaluation.benchmarks import whole_numbers
from hora_rl.evaluation.evaluate import Counts as SampleCounts
from hora_rl.evaluation.results import read_result
from hora_rl.evaluation.run_folders import records


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """`successes` (m,) among `trials` (m,) of m prompts."""

    successes: Int
    trials: Int
    notes: tuple[str, ...] = ()


def read_counts(source: Path) -> Counts:
    """Counts in `source`: a .jsonl file, a run folder, a result of `hora eval` (.json) or its folder.

    Raises ConfigError for an invalid line.
    """
    if not source.exists():
        raise ConfigError(f"{source}: no such file or folder")
    if not source.is_dir():
        return _of_result(source) if source.suffix == ".json" else _of_lines(source)
    if (source / "groups.jsonl").exists():
        return _of_run(source)
    results = sorted([*source.glob("*-step*.json"), *source.glob("evaluation/*-step*.json")])
    if len(results) != 1:
        names = ", ".join(path.name for path in results) or "none"
        raise ConfigError(
            f"{source}: holds neither groups.jsonl nor exactly one result of `hora eval` ({names})"
        )
    return _of_result(results[0])


def write_counts(path: Path, counts: SampleCounts) -> None:
    """Write the counts of an evaluation, one line a problem."""
    pairs = zip(counts.problems.tolist(), counts.correct.tolist(), strict=True)
    rows = ({"id": i, "successes": correct, "trials": counts.samples} for i, correct in pairs)
    replace_text(path, "".join(json.dumps(row) + "\n" for row in rows))


class _Line(BaseModel):
    """One line of a file of counts; it may say more."""

    model_config = ConfigDict(strict=True)

    id: str | int | None = None
    successes: int = Field(ge=0)
    trials: int = Field(gt=0)

    @model_validator(mode="after")
    def _check(self) -> "_Line":
        if self.successes > self.trials:
            raise ValueError(f"successes ({self.successes}) must be in 0..trials ({self.trials})")
        return self


def _of_lines(path: Path) -> Counts:
    rows: list[tuple[int, int]] = []
    seen: dict[str, int] = {}
    for number, text in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines(), start=1):
        try:
            line = _Line.model_validate_json(text)
        except ValidationError as error:
            mistakes = [f"{'.'.join(map(str, e['loc'])) or 'line'}: {e['msg']}" for e in error.errors()]
            raise ConfigError(f"{path}:{number}: {'; '.join(mistakes)}") from error
        rows.append((line.successes, line.trials))
        name = str(number if line.id is None else line.id)
        if name in seen:
            raise ConfigError(f"{path}:{number}: id {name!r} is on line {seen[name]} too; one line a prompt")
        seen[name] = number
    return _counts(rows)


def _counts(rows: Sequence[tuple[int, int]], notes: tuple[str, ...] = ()) -> Counts:
    successes, trials = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return Counts(successes, trials, notes)


def _of_run(folder: Path) -> Counts:
    """The newest group of each prompt. All its rollouts count: their number depended on counts only."""
    path, newest = folder / "groups.jsonl", {}
    for number, record in enumerate(records(path), start=1):
        try:
            newest[record["prompt_index"]] = int(record["hits"]), int(record["size"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}:{number}: not a group's record ({error})") from error
    note = "rates moved while this run trained: the newest group of every prompt counts"
    return _counts(list(newest.values()), (note,))


def _of_result(path: Path) -> Counts:
    result = read_result(path)
    note = (
        f"these are counts of {result.title}: held-out problems are not training prompts, and what they "
        "foretell is not what training will meet"
    )
    return _counts([(correct, result.samples) for correct in result.correct], (note,))


class Options(TypedDict):
    """Options of `allocator.plan`."""

    group_sizes: Sequence[int] | None
    pre_rollouts: Sequence[int] | None
    rules: Sequence[str]
    rounds: Sequence[int]
    gradients: tuple[float, float, int] | None


def check_options(chosen: Options, samples: int) -> None:
    """Raise ConfigError if counts of `samples` trials a prompt could not be planned with."""
    try:
        arms_within(samples, **chosen)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def options(
    group_size: str | None,
    pre_rollouts: str | None,
    rules: str | None,
    rounds: str,
    gradients: str | None = None,
) -> Options:
    """Options from texts with commas between values. Raises ConfigError."""
    shared = None
    if gradients:
        try:
            noise, overlap, prompts = gradients.split(",")
            shared = float(noise), float(overlap), int(prompts)
        except ValueError:
            form = "r,OVERLAP,PROMPTS, such as 9.5,0.75,64"
            raise ConfigError(f"--gradients ({gradients}): must be {form}") from None
    return Options(
        group_sizes=whole_numbers("--group-size", group_size) if group_size else None,
        pre_rollouts=whole_numbers("--pre-rollouts", pre_rollouts) if pre_rollouts else None,
        rules=rules.split(",") if rules else ARMS,
        rounds=whole_numbers("--rounds", rounds),
        gradients=shared,
    )


def plan(source: Path, chosen: Options, json_: bool) -> Plan:
    """Read counts, make the plan, and print it (as JSON with `json_`). Raises ConfigError."""
    counts = read_counts(source)
    try:
        made = plan_of(counts.successes, counts.trials, **chosen)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error
    made = replace(made, notes=(*counts.notes, *made.notes))
    if json_:
        print(json.dumps({"verdict": made.verdict, **asdict(made)}))
    else:
        best = made.recommended
        rule = f"allocation.rule={best.rule} allocation.rounds={best.rounds} allocation.stop={best.stop} "
        print(
            f"{made}\nrecommended: {rule if made.worthwhile else 'allocation.rule=uniform '}"
            f"rollout.group_size={best.group_size} rollout.pre_rollouts={best.pre_rollouts}"
        )
    return made
