"""Whether a prompt's posterior, carried over to the next epoch as its prior, foretells its rollouts better.

    python -m research.carried_priors research/results > research/results/carried-priors.md

Each visit of a prompt after its first, in archived runs: `fixed` is Beta(1,1), `empirical` one Beta fitted to
the last cycles, `carried(d)` is Beta(1 + d(α - 1), 1 + d(β - 1)) of the posterior (α, β) after all
rollouts of the visit before, so d = 0 is `fixed`. Lower is better, in nats a rollout: of Phase A under the
prior, and of Phase B under the posterior after Phase A, which the allocation goes by. Last, expected prompts
with a hit if hit utility divides every batch by that prior: the counts of Phase A are those of the run, the
success rate is exact.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import betaln

from hora_rl.allocator import allocate
from hora_rl.allocator.priors.empirical import EmpiricalPrior
from hora_rl.evaluation.report.markdown import markdown_table
from research.study.archive import GROUPS, RATES, Archive, Record, unpack
from research.study.cells import config_of

RUNS = {"facts": ("grpo", "hora"), "pairs": ("grpo", "hora"), "sums": ("grpo", "hora")}
"""Archives whose prompts come several times, and the arms."""
DECAYS = (0.1, 0.3, 0.5, 1.0)
PRIORS = ("fixed", "empirical", *(f"carried({d:g})" for d in DECAYS))
Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """One batch (Γ,): rows, hits in Phase A, further rollouts and their hits, and success rates if known."""

    row: Ints
    c: Ints
    extra: Ints
    found: Ints
    rate: Array | None


def batches(record: Record) -> Iterator[Visits]:
    """The batches of a cell in order."""
    at = np.array(record[GROUPS + "step"])
    extra, found = ([sum(x) for x in record[GROUPS + name]] for name in ("rounds", "round_hits"))
    row, c, more, hits = map(
        np.array, (record[GROUPS + "prompt_index"], record[GROUPS + "successes"], extra, found)
    )
    rate = np.array(record[RATES]) if RATES in record else None
    for step in np.unique(at):
        here = at == step
        known = None if rate is None else rate[here]
        yield Visits(row[here], c[here], more[here], hits[here], known)


def surprise(alpha: Array, beta: Array, hits: Ints, trials: Ints | int) -> Array:
    """-log probability of each sequence with so many hits under Beta(alpha, beta)."""
    return np.asarray(betaln(alpha, beta) - betaln(alpha + hits, beta + trials - hits))


def measure(record: Record, g0: int, budget: int) -> Array:
    """(priors, 3): nats a rollout of Phase A and of Phase B, and the share of prompts with a hit."""
    shape = (len(PRIORS), max(record[GROUPS + "prompt_index"]) + 1)
    alpha, beta, met = np.ones(shape), np.ones(shape), np.zeros(shape[1], dtype=bool)
    pooled, sums, weights = EmpiricalPrior(), np.zeros((len(PRIORS), 3)), np.zeros(3)
    for v in batches(record):
        again = met[v.row]
        alpha[1, v.row], beta[1, v.row] = pooled.predict(v.row)
        for k in range(len(PRIORS)):
            a, b = alpha[k, v.row], beta[k, v.row]
            after = a + v.c, b + g0 - v.c
            sums[k, 0] += surprise(a, b, v.c, g0)[again].sum()
            sums[k, 1] += surprise(*after, v.found, v.extra)[again].sum()
            if v.rate is not None:
                extra = allocate(v.c, g0, len(v.c) * budget, (a, b))
                hit = np.where(v.c > 0, 1.0, 1 - (1 - v.rate) ** extra)
                sums[k, 2] += hit[again].sum()
            decay = DECAYS[k - 2] if k > 1 else 0.0
            alpha[k, v.row] = 1 + decay * (after[0] + v.found - 1)
            beta[k, v.row] = 1 + decay * (after[1] + v.extra - v.found - 1)
        weights += (g0 * again.sum(), v.extra[again].sum(), again.sum())
        pooled.update(v.row, v.c, g0)
        met[v.row] = True
    return np.asarray(sums / weights)


def rows(archive: Archive, arm: str) -> list[list[str]]:
    """A line of each prior: the mean of `fixed` over seeds, and the others less it, with 95% intervals."""
    rollout, records = config_of(archive.study, arm).rollout, archive.records[arm]
    budget = rollout.group_size - rollout.pre_rollouts
    found = np.array([measure(r, rollout.pre_rollouts, budget) for r in records.values()])
    found[:, :, 2] *= 100
    lines = []
    for k, name in enumerate(PRIORS):
        cells = [archive.study.name, arm, name]
        for what, digits in ((0, 4), (1, 4), (2, 2)):
            if what == 2 and not archive.has_rates(arm):
                cells.append("")
            elif k == 0:
                cells.append(f"{found[:, 0, what].mean():.{digits}f}")
            else:
                apart = found[:, k, what] - found[:, 0, what]
                half = stats.t.ppf(0.975, len(apart) - 1) * stats.sem(apart)
                cells.append(f"{apart.mean():+.{digits}f} ± {half:.{digits}f}")
        lines.append(cells)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print("# A prompt's posterior as the next epoch's prior\n\n" + " ".join(__doc__.split("\n\n")[2].split()))
    print("The others less `fixed`, ± half a 95% interval over seeds: `python -m research.carried_priors`.\n")
    heads = ("study", "arm", "prior", "Phase A, nats", "Phase B, nats", "prompts with a hit, %")
    lines = [
        row
        for name, arms in RUNS.items()
        for archive in [unpack(folder / f"{name}.json.xz")]
        for arm in arms
        for row in rows(archive, arm)
    ]
    table = markdown_table(heads, lines, numbers=True)
    table[1] = table[1].replace("|---|---:|---:|", "|---|---|---|", 1)  # arm and prior are names
    print("\n".join(table))


if __name__ == "__main__":
    main()
