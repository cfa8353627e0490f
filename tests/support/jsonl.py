"""Files of JSON lines, as tests read and write them."""

import json
from collections.abc import Iterable
from pathlib import Path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, records: Iterable[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def samples(path: Path) -> list[dict]:
    """An evaluation's samples so far. Its first line names what is sampled; the last may be half written."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[1:-1]] if path.exists() else []
