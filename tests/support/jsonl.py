"""Files of JSON lines, as tests read them."""

import json
from pathlib import Path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
