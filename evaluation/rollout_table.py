"""Read RUN/rollouts, the rollouts of a live or finished run, as a table.

    from hora_rl.evaluation.rollout_table import read_rollouts
    failures = read_rollouts("runs/tiny", success=False, order="least_likely", limit=20).to_pandas()

`common/rollout_files.py` lists the columns. Sorting reads a few narrow columns of each file, and texts of the
selected rows only, so memory does not grow with the run.
"""

from collections.abc import Sequence
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
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Matching rows, at most `limit`, in `order`.

    Filters: None is any; `prompt` is a prompt's index, `source` a data set's name. Orders: newest step first,
    oldest first, longest, or lowest mean log-prob per token. `columns`: all by default; columns that no file
    has are left out. Raises RunFolderError for a folder without rollouts, a missing step, or a damaged file.
    """
    files = _files(Path(run), step)
    chosen = {"prompt": prompt, "success": success, "phase": phase, "source": source}
    tests = [pc.field(name) == value for name, value in chosen.items() if value is not None]
    matches = reduce(and_, tests) if tests else None
    if order in SORTS:
        return _rows(files, _sorted_keys(files, matches, SORTS[order], limit), columns)
    tables, count = [], 0
    for number in sorted(files, reverse=order == "newest"):
        tables.append(_read(files[number], columns, matches))
        count += tables[-1].num_rows
        if limit is not None and count >= limit:
            break
    return _joined(tables).slice(0, limit)


def _files(run: Path, step: int | None) -> dict[int, Path]:
    files = files_of(run)
    if not files:
        raise RunFolderError(
            f"{run / FOLDER}: no rollouts here: no step is done yet, telemetry.rollouts is none, or the "
            "run is of a version that wrote none"
        )
    if step is None:
        return files
    if step not in files:
        raise RunFolderError(
            f"{run}: no rollouts of step {step}: there are those of {len(files)} steps from "
            f"{min(files)} to {max(files)}; the others were not trained yet, or removed because of "
            "telemetry.rollouts_gib"
        )
    return {step: files[step]}


def _sorted_keys(
    files: dict[int, Path], matches: pc.Expression | None, by: tuple[str, str], limit: int | None
) -> list[tuple[int, str, int]]:
    """Keys of the selected rows, sorted by a column and, where equal, newest first."""
    table = _joined([_read(path, [*KEYS, by[0]], matches) for path in files.values()])
    if not table.num_rows:
        return []
    order = pc.sort_indices(table, sort_keys=[by, ("step", "descending")])
    table = table.take(order).slice(0, limit)
    return list(zip(*(table[name].to_pylist() for name in KEYS), strict=True))


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
    """Rows of a file; no columns if the run has just removed it. Raises RunFolderError if it is damaged."""
    try:
        there = pq.read_schema(path).names
        names = None if columns is None else [name for name in columns if name in there]
        return pq.read_table(path, columns=names, filters=expression, partitioning=None)
    except FileNotFoundError:
        return pa.table({})
    except (pa.ArrowException, OSError) as error:
        reason = one_line(error, 200)
        raise RunFolderError(
            f"{path}: not a file of rollouts ({reason}): it is damaged; remove it, or bring it back"
        ) from None
