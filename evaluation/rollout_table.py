"""Read RUN/rollouts, the rollouts of a live or finished run, as a table.

    from hora_rl.evaluation.rollout_table import read_rollouts
    failures = read_rollouts("runs/tiny", success=False, order="least_likely", limit=20).to_pandas()

`common/rollout_files.py` lists the columns. Filters and sorting read a few narrow columns of each file. Texts
are read for selected rows only, so memory does not grow with the run.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hora_rl.common.errors import one_line
from hora_rl.common.rollout_files import FOLDER, files_of
from hora_rl.evaluation.run_folders import RunFolderError

Order = Literal["newest", "oldest", "longest", "least_likely"]
KEYS = ("step", "group", "number")
"""Columns that identify a row."""
SORTS = {"longest": ("length", "descending"), "least_likely": ("logprob", "ascending")}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Row filters; None: any. `prompt` is a prompt's index, `source` a data set's name."""

    step: int | None = None
    prompt: int | None = None
    success: bool | None = None
    phase: str | None = None
    source: str | None = None

    @property
    def expression(self) -> pc.Expression | None:
        """The filter within a file."""
        chosen = {"prompt": self.prompt, "success": self.success, "phase": self.phase, "source": self.source}
        tests = [pc.field(name) == value for name, value in chosen.items() if value is not None]
        return reduce(and_, tests) if tests else None


def read_rollouts(
    run: Path | str,
    *,
    step: int | None = None,
    prompt: int | None = None,
    success: bool | None = None,
    phase: str | None = None,
    source: str | None = None,
    order: Order = "newest",
    limit: int | None = None,
    offset: int = 0,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Matching rows, at most `limit` after the first `offset`, in `order`.

    Orders: newest step first, oldest first, longest, or lowest mean log-prob per token. `columns`: all by
    default; columns that no file has are left out. Raises RunFolderError for a folder without rollouts, a
    missing step, or a damaged file.
    """
    wanted, folder = Wanted(step, prompt, success, phase, source), Path(run)
    files = _files(folder, wanted)
    if limit is None and not offset and order in ("newest", "oldest"):
        return _joined([_read(path, columns, wanted.expression) for path in _in_order(files, order)])
    keys = _chosen(files, wanted, order, limit, offset)
    return _rows(files, keys, columns)


def steps_of(run: Path | str) -> list[int]:
    """Steps with rollouts, ascending. Raises RunFolderError if there are none."""
    return list(_files(Path(run), Wanted()))


def _files(run: Path, wanted: Wanted) -> dict[int, Path]:
    files = files_of(run)
    if not files:
        raise RunFolderError(
            f"{run / FOLDER}: no rollouts here: no step is done yet, telemetry.rollouts is none, or the "
            "run is of a version that wrote none"
        )
    if wanted.step is None:
        return files
    if wanted.step not in files:
        raise RunFolderError(
            f"{run}: no rollouts of step {wanted.step}: there are those of {len(files)} steps from "
            f"{min(files)} to {max(files)}; the others were not trained yet, or removed because of "
            "telemetry.rollouts_gib"
        )
    return {wanted.step: files[wanted.step]}


def _in_order(files: dict[int, Path], order: Order) -> Iterator[Path]:
    return (files[step] for step in sorted(files, reverse=order != "oldest"))


def _chosen(
    files: dict[int, Path], wanted: Wanted, order: Order, limit: int | None, offset: int
) -> list[tuple[int, str, int]]:
    """Keys of the selected rows, in order."""
    by = SORTS.get(order)
    columns, tables, rows = [*KEYS, *([by[0]] if by else [])], [], 0
    for path in _in_order(files, order):
        tables.append(_read(path, columns, wanted.expression))
        rows += tables[-1].num_rows
        if by is None and limit is not None and rows >= offset + limit:
            break
    table = _joined(tables)
    if by is not None and table.num_rows:
        table = table.take(pc.sort_indices(table, sort_keys=[by, ("step", "descending")]))
    table = table.slice(offset, limit)
    return list(zip(*(table[name].to_pylist() for name in KEYS), strict=True)) if table.num_rows else []


def _rows(
    files: dict[int, Path], keys: Sequence[tuple[int, str, int]], columns: Sequence[str] | None
) -> pa.Table:
    needed = None if columns is None else [*columns, *(name for name in KEYS if name not in columns)]
    if not keys:
        return _read(next(iter(files.values())), columns, None).slice(0, 0)
    tables = [
        _read(files[step], needed, pc.field("group").isin([g for s, g, _ in keys if s == step]))
        for step in dict.fromkeys(step for step, _, _ in keys)
    ]
    table = _joined(tables)
    places = {key: i for i, key in enumerate(zip(*(table[n].to_pylist() for n in KEYS), strict=True))}
    table = table.take([places[key] for key in keys if key in places])
    return table if columns is None else table.select([c for c in columns if c in table.column_names])


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """One table. If a resumed run began to record log-probs, earlier rows have none."""
    return pa.concat_tables([t for t in tables if t.num_columns], promote_options="default")


def _read(path: Path, columns: Sequence[str] | None, expression: pc.Expression | None) -> pa.Table:
    """Rows of one file; no columns if the run has just removed it."""
    try:
        with _reading(path):
            there = pq.read_schema(path).names
            names = None if columns is None else [name for name in columns if name in there]
            return pq.read_table(path, columns=names, filters=expression, partitioning=None)
    except FileNotFoundError:
        return pa.table({})


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise RunFolderError for a damaged file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        reason = one_line(error, 200)
        raise RunFolderError(
            f"{path}: not a file of rollouts ({reason}): it is damaged; remove it, or bring it back"
        ) from None
