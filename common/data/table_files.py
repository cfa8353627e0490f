"""Streams rows of JSON, Parquet or CSV files, up to a size limit."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hora_rl.common.errors import ConfigError, any_error_as, one_line
from hora_rl.common.files import check_regular

MOST_BYTES = 4 << 30
"""Maximum size of the rows in memory."""
CELL_CHARS = 16 << 20
"""Maximum length of one CSV cell."""
SEEN = 4096
"""Characters in which a JSON file shows whether it is a list."""
PACKED = (".gz", ".zst", ".xz", ".bz2", ".zip", ".tar", ".7z")
REMEDIES = {
    "UnicodeDecodeError": "write texts as UTF-8",
    "JSONDecodeError": "write one list of objects, or one object per line",
    "Error": "write commas between cells, and quotes around texts with them",  # csv's
    "PermissionError": "let the user of this process read it",
}
"""By kind of fault."""
BATCH = 64
"""Parquet rows decoded at a time."""
Rows = Iterator[tuple[str, Mapping[str, object]]]


class DataError(ConfigError):
    """A data source that cannot be used: names the source, the place and the remedy."""


def read_rows(path: Path) -> Rows:
    """Each row with its place, `file:line` or `file row N`, from 1. Raises DataError."""
    check_regular(path)
    if not path.exists():
        raise DataError(f"{path}: no such file (data.path)")
    if path.suffix.lower() in PACKED:
        raise DataError(f"{path}: is packed: unpack it, and name the file (data.path)")

    def unreadable(reason: str) -> DataError:
        remedy = REMEDIES.get(reason.partition(":")[0], "write it anew, or as JSON lines")
        return DataError(f"{path}: cannot be read: {one_line(reason, 200)}: {remedy}")

    before = csv.field_size_limit(CELL_CHARS)
    try:
        with any_error_as(unreadable, but=DataError):  # also dates that Python does not have
            yield from READERS.get(path.suffix.lower(), _json_lines)(path)
    finally:
        csv.field_size_limit(before)


def _json(path: Path) -> Rows:
    """JSON lines, or one list of objects."""
    with path.open(encoding="utf-8-sig") as file:
        if file.read(SEEN).lstrip()[:1] != "[":
            yield from _json_lines(path)
            return
        file.seek(0)
        text = "".join(_bounded(path, iter(lambda: file.read(CELL_CHARS), ""), len))
    for number, row in enumerate(json.loads(text), start=1):
        if not isinstance(row, dict):
            raise DataError(f"{path} row {number}: a {type(row).__name__}, not an object with named columns")
        yield f"{path} row {number}", row


def _json_lines(path: Path) -> Rows:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        # Lines end only at \n: JSON strings may hold U+2028 and other line separators.
        for number, line in enumerate(_bounded(path, file, len), start=1):
            if line.strip():
                yield f"{path}:{number}", _object(f"{path}:{number}", line)


def _object(where: str, line: str) -> Mapping[str, object]:
    try:
        row = json.loads(line)
    except (RecursionError, ValueError) as error:  # also a number of 5,000 digits
        reason = f"{type(error).__name__}: {one_line(error, 200)}"
        raise DataError(f"{where}: not JSON: {reason}; one object per line") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: a {type(row).__name__}, not an object with named columns")
    return row


def _csv(path: Path) -> Rows:
    """Cells are text, divided by what divides the names of the columns; an empty cell is None."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        begins = file.readline(CELL_CHARS)
        file.seek(0)
        # Spreadsheets write semicolons where a comma is in numbers.
        mark = next((mark for mark in ",;\t" if mark in begins), ",")
        rows = csv.DictReader(_bounded(path, file, len), strict=True, delimiter=mark)
        _check_columns(path, rows.fieldnames or ())
        for row in rows:
            within = sum(cell.count("\n") for cell in row.values() if isinstance(cell, str))
            where = f"{path}:{rows.line_num - within}"  # where the row begins
            if None in row:  # extra cells
                raise DataError(f"{where}: more cells than the {len(rows.fieldnames or ())} columns")
            yield where, {name: cell or None for name, cell in row.items()}


def _parquet(path: Path) -> Rows:
    import pyarrow.parquet

    number = 0
    with pyarrow.parquet.ParquetFile(path) as file:
        _check_columns(path, file.schema_arrow.names)
        for batch in _bounded(path, file.iter_batches(BATCH), lambda batch: batch.nbytes):
            for row in batch.to_pylist():
                number += 1
                yield f"{path} row {number}", row


def _check_columns(path: Path, names: Sequence[str]) -> None:
    """A row would keep only the last of two columns of one name."""
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise DataError(f"{path}: has {names.count(twice[0])} columns {twice[0]!r}: rename or remove one")


def _bounded(path: Path, pieces: Iterator[Any], size: Callable[[Any], int]) -> Iterator[Any]:
    """The pieces, up to MOST_BYTES in total."""
    total = 0
    for piece in pieces:
        total += size(piece)
        if total > MOST_BYTES:
            raise DataError(f"{path}: more than {MOST_BYTES >> 30} GiB of rows: divide it")
        yield piece


READERS = {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet, ".csv": _csv, ".tsv": _csv}
"""Readers by file ending; JSON lines for any other."""
