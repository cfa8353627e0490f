"""Plan an allocation from Python: pass counts in, what each rule would find at each group size out.

python -m examples.plan_a_run [COUNTS.jsonl]     counts as `hora plan CONFIG` writes them; else made-up ones
"""

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hora_rl import plan


def made_up(prompts: int = 300, trials: int = 64) -> tuple[NDArray[np.int64], int]:
    """Successes and trials of prompts of which many always or never succeed."""
    rng = np.random.default_rng(0)
    return rng.binomial(trials, rng.beta(0.323, 0.143, prompts)), trials


def recorded(path: Path) -> tuple[list[int], list[int]]:
    """Successes and trials of the lines of `path`."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["successes"] for row in rows], [row["trials"] for row in rows]


def main(source: str | None = None) -> None:
    counts = recorded(Path(source)) if source else made_up()
    print(plan(*counts, group_sizes=[16, 32], pre_rollouts=[4]))


if __name__ == "__main__":
    main(*sys.argv[1:])
