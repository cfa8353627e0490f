"""Why allocation acts as it does: what batches of known success rates yield, foretold and found.

The loop of recall tasks records the exact success rate p of every sampled prompt. So both sides of the
mechanism can be set against each other, group by group:

share   P(c >= 1), the share of the likelihood's gradient ∇log p that a group realises
update  √(q(1−q)(n−1)/n) with q = c/n: how far `grpo` moves the logit of the prompt's success
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hora_rl.allocator import Session
from hora_rl.allocator.rules import needs_counts

Float = NDArray[np.float64]
Int = NDArray[np.int64]
EDGES = (0.0, 0.01, 0.03, 0.1, 0.3, 0.7, 0.9, 1.0)
"""Ends of the classes of success rate."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """N groups of one arm, whole batches one after the other: the batch of each, its prompt's success rate p,
    size n, hits c, and the prior (N, 2) that its batch was divided by."""

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


@dataclass(frozen=True, slots=True)
class Terms:
    """How an arm divides Phase B: in `shards` parts of a batch, each on its own."""

    rule: str
    rounds: int
    stop: str
    group_size: int
    pre_rollouts: int
    shards: int = 1
    max_group_size: int | None = None


def foretold(groups: Groups, terms: Terms, draws: int, seed: int = 0) -> Groups:
    """`draws` repetitions of the arm's batches by the allocator on prompts of the same rates, without any
    model."""
    rng = np.random.default_rng(seed)
    parts = [
        _draw(rng, groups, shard, terms)
        for rows in batches(groups)
        for _ in range(draws)
        for shard in np.split(rows, terms.shards)
    ]
    rows = np.concatenate([rows for rows in batches(groups) for _ in range(draws)])
    sizes, hits = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Groups(groups.batch[rows], groups.p[rows], sizes, hits, groups.prior[rows])


def batches(groups: Groups) -> Iterator[Int]:
    """Rows of each batch."""
    ends = np.flatnonzero(np.diff(groups.batch)) + 1
    yield from np.split(np.arange(len(groups.batch)), ends)


def _draw(rng: np.random.Generator, groups: Groups, rows: Int, terms: Terms) -> tuple[Int, Int]:
    """Sizes and hits (n,) of one shard drawn anew."""
    p, n = groups.p[rows].clip(0.0, 1.0), len(rows)
    alpha, beta = groups.prior[rows[0]].tolist()
    budget = n * (terms.group_size - terms.pre_rollouts)
    counted = needs_counts(terms.rule)
    rounds, stop = (terms.rounds, terms.stop) if counted else (1, "none")
    session = Session(
        n,
        budget,
        rule=terms.rule,
        prior=(alpha, beta),
        rounds=rounds,
        stop=stop,
        max_group_size=terms.max_group_size,
    )
    hits = rng.binomial(terms.pre_rollouts, p)
    session.tell(hits.tolist(), terms.pre_rollouts)
    sizes = np.full(n, terms.pre_rollouts)
    for left in range(rounds, 0, -1):
        extra = session.ask()
        found = rng.binomial(extra, p)
        sizes, hits = sizes + extra, hits + found
        if left > 1:
            session.tell(found.tolist(), extra.tolist())
    return sizes, hits


def by_difficulty(groups: Groups, values: Float) -> tuple[Float, Float, Int]:
    """Of each class of EDGES: the mean of `values` (N,), its standard error, and the number of groups; NaN
    where a class is empty."""
    classes = np.clip(np.digitize(groups.p, EDGES) - 1, 0, len(EDGES) - 2)
    columns = [values[classes == k] for k in range(len(EDGES) - 1)]
    means = np.array([c.mean() if len(c) else np.nan for c in columns])
    errors = np.array([c.std(ddof=1) / np.sqrt(len(c)) if len(c) > 1 else np.nan for c in columns])
    return means, errors, np.array([len(c) for c in columns])
