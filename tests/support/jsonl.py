"""Files of rows, as tests read and write them."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, records: Iterable[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_table(path: Path, rows: Sequence[dict], mark: str = ",") -> Path:
    """`rows` in the form of the ending: JSON, JSON lines, Parquet, or cells divided by `mark`."""
    if path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2), encoding="utf-8-sig")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8-sig")
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]), delimiter=mark)
            table.writeheader()
            table.writerows(rows)
    return path


def samples(path: Path) -> list[dict]:
    """An evaluation's samples so far. Its first line names what is sampled; the last may be half written."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[1:-1]] if path.exists() else []
