"""Plan an allocation from Python: pass counts in, what each rule would find at each group size out.

python -m examples.plan_a_run [COUNTS.jsonl]     counts as `hora sample` writes them; else made-up ones
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from evaluation.plan.counts import Counts, read_counts
from evaluation.plan.forecast import ARMS, Plan, arms, forecast
from evaluation.plan.show import name_of


def made_up(path: Path, prompts: int = 300, trials: int = 64) -> Path:
    """Counts of prompts of which many always or never succeed, as `hora sample` writes them."""
    rng = np.random.default_rng(0)
    counts = rng.binomial(trials, rng.beta(0.323, 0.143, prompts))
    rows = ({"id": i, "successes": int(c), "trials": trials} for i, c in enumerate(counts))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def planned(counts: Counts) -> Plan:
    """The rules that `hora plan` looks at, in one round and in four."""
    return forecast(counts, arms(ARMS, rounds=[1, 4], pre_rollouts=[4], group_sizes=[16, 32]))


def main(source: str | None = None) -> None:
    with TemporaryDirectory() as folder:
        counts = read_counts(Path(source) if source else made_up(Path(folder) / "counts.jsonl"))
    plan = planned(counts)
    for row in plan.rows:
        print(f"{name_of(row):40} G {row.group_size:3}  hit {row.hits:.1%}  signal {row.signal:.1%}")
    print(f"recommended: {name_of(plan.recommended)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
