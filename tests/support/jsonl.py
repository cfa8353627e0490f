"""Files of JSON lines, as tests read them."""

import json
from pathlib import Path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def samples(path: Path) -> list[dict]:
    """An evaluation's samples so far. Its first line names what is sampled; the last may be half written."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[1:-1]] if path.exists() else []
