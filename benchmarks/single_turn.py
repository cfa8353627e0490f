"""Whether rollouts of one turn cost more than in an earlier commit: the wire and the learner's batch, which
know turns, of this tree and of that commit, in turn.

    python -m benchmarks.single_turn --before 950aac4^ [--rounds 9]

Everything else that a rollout of one turn meets does not know turns. Each round starts a process for either
tree, which spends 40 groups of 16 rollouts of 200 tokens several times; time is processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHILD = """
import json, statistics, sys, time
import numpy as np
import common.wire, learner.batch
from common.types import Group, Rollout, VersionSpan
from common.wire import decode_group, encode_group
from learner.batch import Sample, micro_batches

assert all(m.__file__.startswith(sys.argv[1]) for m in (common.wire, learner.batch)), common.wire.__file__
rng = np.random.default_rng(0)

def rollout(i):
    tokens = rng.integers(0, 80, 200, dtype=np.int32)
    logprobs = -rng.random(200, dtype=np.float32)
    success = bool(i % 2)
    rewards = {"accuracy": float(success), "format": 1.0}
    spans = (VersionSpan(3, 0, 200),)
    return Rollout(tokens, logprobs, "stop", spans, "A" if i < 4 else "B", rewards, success, int(i >= 4))

prompt = rng.integers(0, 80, 12, dtype=np.int32)
groups = [
    Group("r", 0, i, 3, 0, "hit_utility", (1.0, 1.0), "t", 4, prompt, tuple(map(rollout, range(16))))
    for i in range(40)
]
times = {"encode": [], "decode": [], "batch": []}
for _ in range(8):
    t0 = time.process_time()
    messages = [encode_group(g) for g in groups]
    t1 = time.process_time()
    read = [decode_group(m, run="r", vocabulary=80) for m in messages]
    t2 = time.process_time()
    make = getattr(learner.batch, "_samples", None) or (lambda *a: [learner.batch._sample(*a)])
    samples = [s for g in read for r in g.rollouts for s in make(g, r, 1.0, 0.1, 3)]
    micro_batches(samples, 8192, True)
    t3 = time.process_time()
    for name, seconds in zip(times, (t1 - t0, t2 - t1, t3 - t2)):
        times[name].append(seconds)
print(json.dumps({name: min(seconds) for name, seconds in times.items()}))
"""


def spent(tree: Path) -> dict[str, float]:
    """Seconds of each part in `tree`."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tree)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "all": sum(found.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", required=True, help="commit to compare with")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        before = Path(name).resolve()
        archive = subprocess.run(
            ["git", "archive", options.before], cwd=ROOT, capture_output=True, check=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", str(before)], input=archive, check=True)
        trees = {"before": before, "now": ROOT}
        found: dict[str, list[dict[str, float]]] = {side: [] for side in trees}
        for number in range(options.rounds):
            for side in sorted(trees, reverse=bool(number % 2)):
                found[side].append(spent(trees[side]))
    for part in found["now"][0]:
        old, new = ([m[part] for m in found[side]] for side in ("before", "now"))
        ratios = [o / n for o, n in zip(old, new, strict=True)]
        spread = f"{statistics.median(ratios):.2f} of before ({min(ratios):.2f} to {max(ratios):.2f})"
        medians = [1000 * statistics.median(seconds) for seconds in (old, new)]
        print(f"{part:8} {medians[0]:7.1f} ms before, {medians[1]:7.1f} ms now; speed {spread}")


if __name__ == "__main__":
    main()
