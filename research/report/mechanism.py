"""Why allocation acts as it does: the yield of batches of known success rates, as found and as the allocator
makes it without a model.

The loop of recall tasks records the exact success rate p of every sampled prompt. So both sides of the
mechanism can be set against each other, group by group:

share   P(c >= 1), the share of the likelihood's gradient ∇log p that a group realises
update  √(q(1−q)(n−1)/n) with q = c/n: how far `grpo` moves the logit of the prompt's success
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator import Session
from hora_rl.allocator.planning.shards import simulate
from hora_rl.common.config import Config
from hora_rl.evaluation.report.markdown import markdown_table

Float = NDArray[np.float64]
Int = NDArray[np.int64]
EDGES = (0.0, 0.01, 0.03, 0.1, 0.3, 0.7, 0.9, 1.0)
"""Ends of the classes of success rate."""
LABELS = [f"{low:g} to {high:g}" for low, high in pairwise(EDGES)]
VALUES = {"share": "share of ∇log p realised", "update": "move of the success logit under grpo"}


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """N groups of one arm, complete batches one after the other: the batch of each, its prompt's success rate
    p, size n, hits c, and the prior (N, 2) of its batch's allocation."""

    batch: Int
    p: Float
    size: Int
    hits: Int
    prior: Float

    @property
    def share(self) -> Float:
        """1.0 (N,) for each group with a hit."""
        return (self.hits > 0).astype(np.float64)

    @property
    def update(self) -> Float:
        """Move of the success logit (N,) under `grpo`."""
        q = self.hits / self.size
        moved: Float = np.sqrt(q * (1.0 - q) * (self.size - 1) / self.size)
        return moved


def redrawn(groups: Groups, config: Config, draws: int, seed: int = 0) -> Groups:
    """`draws` repetitions of the batches by the allocator of `config` on prompts of the same rates, without
    any model. A batch is one shard."""
    rng = np.random.default_rng(seed)
    ends = np.flatnonzero(np.diff(groups.batch)) + 1
    batches = np.split(np.arange(len(groups.batch)), ends)
    rows = [batch for batch in batches for _ in range(draws)]
    hits, sizes = zip(*(_draw(rng, groups, batch, config) for batch in rows), strict=True)
    every = np.concatenate(rows)
    return Groups(
        groups.batch[every], groups.p[every], np.concatenate(sizes), np.concatenate(hits), groups.prior[every]
    )


def _draw(rng: np.random.Generator, groups: Groups, rows: Int, config: Config) -> tuple[Int, Int]:
    """Hits and sizes (n,) of one batch drawn anew."""
    p, n, first = groups.p[rows].clip(0.0, 1.0), len(rows), config.rollout.pre_rollouts
    allocation = config.allocation.under(config.allocation.rule)
    alpha, beta = groups.prior[rows[0]].tolist()
    session = Session(
        n,
        n * (config.rollout.group_size - first),
        rule=allocation.rule,
        prior=(alpha, beta),
        rounds=allocation.rounds,
        stop=allocation.stop,
    )
    return simulate(session, p, first, rng)


def by_difficulty(groups: Groups, name: str) -> tuple[Float, Float]:
    """Of each class of EDGES: the mean of `share` or `update` and its standard error; NaN where a class has
    too few groups."""
    values = getattr(groups, name)
    classes = np.clip(np.digitize(groups.p, EDGES) - 1, 0, len(LABELS) - 1)
    columns = [values[classes == k] for k in range(len(LABELS))]
    means = np.array([c.mean() if len(c) else np.nan for c in columns])
    return means, np.array([c.std(ddof=1) / np.sqrt(len(c)) if len(c) > 1 else np.nan for c in columns])


def mechanism_table(found: Mapping[str, Groups], expected: Mapping[str, Groups]) -> str:
    """Share and update by success rate, found and expected, in Markdown."""
    lines = [
        "## Mechanism",
        "",
        "By the prompt's success rate when it was sampled: found in training / foretold by drawing the same "
        "batches anew from the allocator and binomial outcomes alone.",
    ]
    for name, title in VALUES.items():
        rows = ([arm, *_cells(found[arm], expected[arm], name)] for arm in found)
        lines += ["", f"{title[0].upper()}{title[1:]}:", "", *markdown_table(["arm", *LABELS], rows)]
    return "\n".join(lines) + "\n"


def _cells(found: Groups, expected: Groups, name: str) -> list[str]:
    columns = zip(*by_difficulty(found, name), by_difficulty(expected, name)[0], strict=True)
    return [f"{m:.3f} ± {1.96 * e:.3f} / {x:.3f}" if np.isfinite(e) else "—" for m, e, x in columns]
