"""Data sets: numbered rows of problem and gold answer, from `arithmetic`, a `reasoning-gym` task, a file
(`common/data/table_files.py`) or the Hugging Face hub.

A gold answer may be any JSON value; numbers become text. A row that its rewards cannot use is left out, never
counted as wrong, and listed in `Dataset.rejected` with place and reason. An unusable source (no file, a line
that is not JSON, a missing column) is a `DataError` of one line. `common/data/prompt_order.py` determines the
order of rows."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hora_rl.actors.data.gold_answers import Unusable, candidate_of, gold_test
from hora_rl.common.config import Config, DataConfig, EvaluationConfig
from hora_rl.common.config.data import is_generated
from hora_rl.common.data import arithmetic, gym
from hora_rl.common.data.layouts import Layout, layout_of, problem_of
from hora_rl.common.data.rows import Messages, Row, has, names, reach, read_prompt
from hora_rl.common.data.table_files import READERS, DataError, read_rows
from hora_rl.common.errors import any_error_as, one_line
from hora_rl.common.files import check_folder

IMAGES = ("image", "images")
SEEN, NAMED = 16, 40
"""Rows whose columns an error may name, and the most columns."""
SPACED = ":spaced"
"""Suffix of the path for additions in the notation of pretrained models."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that is left out; `location` as in `Row`."""

    location: str
    reason: str


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    rows: tuple[Row, ...]
    rejected: tuple[Rejected, ...]
    layouts: tuple[str, ...] = ()
    """The layouts of its rows, for people."""

    def __len__(self) -> int:
        return len(self.rows)


def load_dataset(data: DataConfig, unusable: Unusable | None = None, section: str = "data") -> Dataset:
    """The rows of `data`; `data.limit` counts usable rows. `section` has the keys that errors name.

    `arithmetic` takes its `split` (`train` or `held-out`). `arithmetic:2-4` has 2 to 4 digits, equally often;
    `arithmetic:2-4:spaced` writes `52 + 17`. `reasoning_gym:TASK` takes the same splits, and `settings`. A
    path with a known ending, or of a file, is read as a file; other paths are Hugging Face data sets.
    `unusable` rejects rows (`gold_test`); by default a row needs only a problem. Raises DataError if the
    source cannot be read or has no usable row, ConfigError for a task."""
    if not data.path:
        raise DataError("data.path is not set: this needs one data set, not several in data.sources")
    if data.path == "arithmetic" or data.path.startswith("arithmetic:"):
        return _collect(data, _arithmetic(data, section), unusable, section)
    if data.path.startswith(gym.PREFIX):
        columns = data.model_copy(update={"prompt_field": "question", "answer_field": "answer"})
        entries = gym.entries(data.path, data.settings, _split(data, section), data.limit)
        rows = ((f"{data.path}[{data.split}] row {i}", entry) for i, entry in enumerate(entries, start=1))
        return _collect(columns, rows, unusable, section)
    if not on_the_hub(data.path):
        for key in ("name", "revision"):
            if getattr(data, key) is not None:
                raise DataError(f"{section}.{key}: {data.path} is a file and has none: leave the key out")
        return _collect(data, read_rows(Path(data.path)), unusable, section)
    return _collect(data, _hub(data, section), unusable, section)


def on_the_hub(path: str) -> bool:
    """Whether the library `datasets` reads `path`: a name on the hub, or a folder in the same form."""
    file = Path(path)
    is_file = path.endswith(tuple(READERS)) or (file.exists() and not file.is_dir())
    return not is_file and not is_generated(path)


def load_held_out(
    evaluation: EvaluationConfig, data: DataConfig, unusable: Unusable | None = None
) -> Dataset:
    """The problems of `evaluation`: the held-out split of generated data, or a file or data set with the
    columns of `data`, a configuration's `evaluated.data`, or in a known layout. Raises DataError."""
    path = evaluation.path
    if path is None:
        raise DataError("evaluation.path is not set: name a held-out file or `arithmetic`")
    changed = {**data.held_out(path), **evaluation.on_the_hub, "limit": evaluation.prompts}
    return load_dataset(data.model_copy(update=changed), unusable, "evaluation")


def usable_held_out(config: Config) -> Dataset:
    """The problems of `config.evaluation` that its rewards can use. Raises as `load_held_out`."""
    evaluated = config.evaluated
    return load_held_out(config.evaluation, evaluated.data, gold_test(evaluated.reward))


def _collect(
    data: DataConfig,
    source: Iterable[tuple[str, Mapping[str, object]]],
    unusable: Unusable | None,
    section: str,
) -> Dataset:
    rows: list[Row] = []
    rejected: list[Rejected] = []
    first: list[Mapping[str, object]] = []
    layouts: dict[str, None] = {}
    for location, raw in source:
        first += [raw] * (len(first) < SEEN)
        layout = layout_of(raw)
        prompt_field, answer_field = data.prompt_field, data.answer_field
        if section == "evaluation":  # the keys name the columns of the training rows
            prompt_field, answer_field = (
                field if field and has(raw, field) else None for field in (prompt_field, answer_field)
            )
        problem, messages, reason = _problem(prompt_field, layout, raw)
        candidate = replace(candidate_of(answer_field, layout, raw), problem=problem)
        reason = reason or (unusable(candidate) if unusable else None)
        if reason is None:
            rows.append(Row(len(rows), problem, candidate.answer, candidate.columns, messages, location))
            if None in (prompt_field, answer_field) and not layout.is_default:
                layouts.setdefault(str(layout))
        else:
            rejected.append(Rejected(location, reason))
        if data.limit is not None and len(rows) >= data.limit:
            break
    if not rows:
        raise DataError(_nothing(data, first, rejected))
    return Dataset(data.path, tuple(rows), tuple(rejected), tuple(layouts))


def _problem(
    named: str | None, layout: Layout, raw: Mapping[str, object]
) -> tuple[str, Messages, str | None]:
    field = named or layout.problem
    if not has(raw, field):
        return "", (), f"no column {field!r} (data.prompt_field)"
    if image := next((name for name in IMAGES if raw.get(name)), None):
        return "", (), f"{image!r} holds an image, and prompts are text alone: use rows without"
    try:
        return *read_prompt(reach(raw, named) if named else problem_of(layout, raw)), None
    except ValueError as error:
        return "", (), f"{field!r} {error}"


def _nothing(data: DataConfig, rows: Sequence[Mapping[str, object]], rejected: Sequence[Rejected]) -> str:
    """Why no row can be used, from the first `rows`, with the keys that may help."""
    if not rejected:
        return f"{data.path}: holds no rows; name a file or split that does (data.path, data.split)"
    first, columns = rejected[0], sorted({name for row in rows for name in names(row)})
    return (
        f"{data.path}: none of its {len(rejected)} rows can be used; the first, {first.location}: "
        f"{first.reason}; its columns are {', '.join(columns[:NAMED]) or 'none'}: name one in "
        "data.prompt_field or data.answer_field"
    )


def _split(data: DataConfig, section: str) -> arithmetic.Split:
    """The split of a generated data set. Raises DataError for an unknown one."""
    for split in arithmetic.SPLITS:
        if split == data.split:
            return split
    name = data.path.split(":")[0]
    there = ", ".join(arithmetic.SPLITS)
    raise DataError(f"{section}.split ({data.split!r}) of {name} must be one of {there}")


def _arithmetic(data: DataConfig, section: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    split = _split(data, section)
    digits, spaced = arithmetic.DEFAULT_DIGITS, data.path.endswith(SPACED)
    if ":" in data.path:
        bounds = re.fullmatch(r"arithmetic:(\d)-(\d)", data.path.removesuffix(SPACED))
        if bounds is None or int(bounds[1]) > int(bounds[2]):
            raise DataError(
                f"data.path ({data.path!r}): write arithmetic, or arithmetic:2-4 for 2 to 4 digits, with "
                f"{SPACED!r} behind for `52 + 17` in place of `52+17=?`"
            )
        digits = dict.fromkeys(range(int(bounds[1]), int(bounds[2]) + 1), 1.0)
    try:
        problems = arithmetic.generate(0, split, data.limit or arithmetic.ROWS[split], digits)
    except ValueError as error:
        raise DataError(str(error)) from error
    for number, p in enumerate(problems, start=1):
        problem = p.spaced if spaced else p.problem
        columns = {data.prompt_field or "problem": problem, data.answer_field or "answer": p.answer}
        yield f"{data.path}[{split}] row {number}", columns


def _hub(data: DataConfig, section: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    import datasets

    if Path(data.path).is_dir():
        check_folder(Path(data.path))

    def unusable(reason: str) -> DataError:
        return DataError(
            f"{data.path}: the Hugging Face data set cannot be loaded: {one_line(reason, 1000)}. Check "
            f"{section}.path, {section}.name ({data.name}), {section}.split ({data.split}) and "
            f"{section}.revision (refs/convert/parquet for one made by a script), or name a JSONL file of it."
        )

    with any_error_as(unusable):  # a script is a RuntimeError, a column without its decoder an ImportError
        rows = datasets.load_dataset(data.path, data.name, split=data.split, revision=data.revision)
        for number, row in enumerate(rows, start=1):
            yield f"{data.path}[{data.split}] row {number}", row
