"""What a run was like so far, for charts: a bounded number of points however long the run, read bit by bit.

Series by step come from the learner's stream, flows from the samples that readings leave behind, and the
share of Phase B by c_i (the paper's allocation figure) from the shard reports.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from common.config import Config
from common.keys import Keys
from common.redis import Redis
from common.state import read_state
from common.telemetry import FLOWS
from deploy.monitor.run_state import numbers

POINTS = 400
KEPT = 4 * POINTS
CHUNK = 2000
SMOOTH = 5
BY_STEP = (
    "reward",
    "reward/format",
    "success",
    "entropy",
    "length/mean",
    "length/max",
    "lag/mean",
    "lag/max",
    "time/step",
    "time/wait",
    "tokens_per_second",
    "grad_norm",
    "drift",
)


class History:
    """Grows with every `read`; `to_dict` is at most POINTS points per series. `client` is a blocking
    client."""

    def __init__(self, run: str) -> None:
        self._run, self._keys = run, Keys(run)
        self._steps: dict[int, dict[str, float]] = {}
        self._samples: list[dict[str, float]] = []
        self._every, self._seen = 1, 0
        self._shares: dict[int, tuple[list[int], list[int]]] = {}
        self._last_step = self._last_sample = "0"
        self._next_batch = 0

    def read(self, client: Redis, config: Config) -> None:
        """Take in what has come since the last call."""
        for entry, fields in _since(client, self._keys.steps, self._last_step):
            metrics = numbers(fields[b"metrics"])
            # A resumed run repeats steps; the later record is the one that counts.
            self._steps[int(metrics["step"])] = {k: metrics[k] for k in BY_STEP if k in metrics}
            self._last_step = entry
        for entry, fields in _since(client, self._keys.history, self._last_sample):
            self._keep(json.loads(fields[b"sample"]))
            self._last_sample = entry
        self._read_shares(client, config)

    def to_dict(self, evaluations: dict[int, dict[str, float]], pre_rollouts: int) -> dict[str, Any]:
        """Columns for the charts of the page."""
        steps = sorted(self._steps)
        return {
            "steps": {
                "step": _thin([float(s) for s in steps]),
                **{
                    name: _thin([self._steps[s].get(name) for s in steps])
                    for name in BY_STEP
                    if any(name in m for m in self._steps.values())
                },
            },
            "flow": self._flow(),
            "shares": self._share_columns(classes(pre_rollouts)),
            "evaluations": {str(v): e for v, e in evaluations.items()},
        }

    def _keep(self, sample: dict[str, float]) -> None:
        """Keep every n-th sample, n doubling when too many are kept: counters lose nothing by it."""
        if self._seen % self._every == 0:
            self._samples.append(sample)
        self._seen += 1
        if len(self._samples) > KEPT:
            self._samples = self._samples[::2]
            self._every *= 2

    def _read_shares(self, client: Redis, config: Config) -> None:
        shards, trials = config.rollout.shards, config.rollout.pre_rollouts
        last = read_state(client, self._run).step + config.rollout.max_staleness
        for batch in range(self._next_batch, min(last + 1, self._next_batch + CHUNK)):
            found = client.hmget(self._keys.shards, [f"{batch}:{s}" for s in range(shards)])
            if not all(found):
                return
            prompts, extra = [0] * (trials + 1), [0] * (trials + 1)
            for report in (json.loads(f) for f in found if f):
                for c, e in zip(report["successes"], report["extra"], strict=True):
                    prompts[c] += 1
                    extra[c] += e
            self._shares[batch] = (prompts, extra)
            self._next_batch = batch + 1

    def _flow(self) -> dict[str, list[float | None]]:
        samples = self._samples
        # Groups come and go in bursts: rates over a few seconds say more than those of one.
        step = max(SMOOTH if len(samples) > 12 * SMOOTH else 1, -(-len(samples) // POINTS))
        picked = samples[::step]
        pairs = list(itertools.pairwise(picked))
        return {
            "time": [round(b["time"], 1) for _, b in pairs],
            **{k: [b.get(k) for _, b in pairs] for k in ("depth", "version", "oldest_replica")},
            **{
                f: [_short(max(0.0, b[f] - a[f]) / max(1e-3, b["time"] - a["time"])) for a, b in pairs]
                for f in FLOWS
            },
        }

    def _share_columns(self, buckets: list[tuple[int, int]]) -> dict[str, Any]:
        batches = sorted(self._shares)

        def share(column: int, low: int, high: int) -> list[float | None]:
            rows = [self._shares[b][column] for b in batches]
            return [sum(row[low : high + 1]) / total if (total := sum(row)) else None for row in rows]

        return {
            "batch": _thin([float(b) for b in batches]),
            "classes": [f"{low}" if low == high else f"{low}-{high}" for low, high in buckets],
            "prompts": [_thin(share(0, low, high)) for low, high in buckets],
            "phase_b": [_thin(share(1, low, high)) for low, high in buckets],
        }


def classes(trials: int) -> list[tuple[int, int]]:
    """The paper's classes of c_i for any G0: none right, few, many, all right (0, 1-3, 4-7, 8 of 8)."""
    middle = trials // 2
    few, many = (1, middle - 1), (max(1, middle), trials - 1)
    return [(0, 0), *(b for b in (few, many) if b[0] <= b[1]), (trials, trials)]


def _since(client: Redis, stream: str, last: str) -> list[tuple[str, dict[bytes, bytes]]]:
    found: Any = client.xrange(stream, min=f"({last}" if last != "0" else "-", count=CHUNK)
    return [(entry.decode(), fields) for entry, fields in found]


def _thin(values: Sequence[float | None]) -> list[float | None]:
    """At most POINTS means of neighbours; None where a neighbourhood has no value."""
    width = max(1, -(-len(values) // POINTS))
    groups = (values[i : i + width] for i in range(0, len(values), width))
    return [_mean([v for v in group if v is not None]) for group in groups]


def _mean(values: list[float]) -> float | None:
    return _short(sum(values) / len(values)) if values else None


def _short(value: float) -> float:
    """Five digits: enough for a chart, half the bytes."""
    return float(f"{value:.5g}")
