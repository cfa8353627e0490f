"""What one more planned hit is worth: the gain of an allocation per point of prompts with a hit it finds.

    python -m research.study.exchange research/results

Planned are the hits of the first batches alone: the arm's allocation on the success rates of the untrained
policy, less uniform sampling on the same prompts. No outcome of training enters. The rate of a start is the
slope through the origin of the area under Pass@16 on the planned points, over `PAIRS`; its interval is
Student's over seeds.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from hora_rl.evaluation.report.markdown import markdown_table
from research.report.curves import Array
from research.report.mechanism import Groups, redrawn
from research.study.archive import GROUPS, RATES, Archive, unpack
from research.study.cells import config_of
from research.study.starts import STARTS, differences

PAIRS = (("hora", "grpo"), ("likelihood-stop", "likelihood"))
"""Of one objective each, so that only the allocation differs."""
AREA = "Pass@16, area"
DRAWS = 200


def first_rates(archives: Sequence[Archive]) -> list[Array]:
    """The success rates (Γ,) of every first batch, one a seed: those of the untrained policy."""
    batches: dict[int, Array] = {}
    for records in (archive.records[arm] for archive in archives for arm in archive.records):
        for seed, record in records.items():
            if RATES in record:
                step, rate = np.array(record[f"{GROUPS}step"]), np.array(record[RATES])
                batches.setdefault(seed, rate[step == step[0]])
    return [rate for _, rate in sorted(batches.items())]


def planned(archive: Archive, arm: str, rates: Sequence[Array]) -> float:
    """Points of prompts with a hit that the arm's allocation finds more than uniform sampling."""
    config, p = config_of(archive.study, arm), np.concatenate(rates)
    batch = np.repeat(np.arange(len(rates)), [len(rate) for rate in rates])
    none = np.zeros(len(p), dtype=np.int64)
    start = Groups(batch, p, none, none, np.ones((len(p), 2)))
    uniform = 1 - (1 - p) ** config.rollout.group_size
    return 100 * float(redrawn(start, config, DRAWS).share.mean() - uniform.mean())


def rate(gains: Sequence[Array], points: Array) -> tuple[float, float]:
    """The slope and half its 95% interval of gains, one (S,) for each of `points` (K,), on the same seeds."""
    slopes = points @ np.array(gains) / (points @ points)
    return float(slopes.mean()), float(stats.t.ppf(0.975, len(slopes) - 1) * stats.sem(slopes))


def row(name: str, archives: Sequence[Archive], rates: Sequence[Array]) -> list[str]:
    """Planned points and gains of `PAIRS`, then the exchange rate."""
    studies = [(archive.curves(), archive.study.design.watched) for archive in archives]
    gains = [differences(studies, pair, AREA) for pair in PAIRS]
    points = np.array([planned(archives[0], arm, rates) for arm, _ in PAIRS])
    slope, half = rate(gains, points)
    shown = [f"{at:+.1f} → {gain.mean():+.1f}" for at, gain in zip(points, gains, strict=True)]
    return [name, *shown, f"{slope:.2f} ± {half:.2f}"]


def table(starts: Mapping[str, Sequence[Archive]]) -> str:
    known = {name: (found, first_rates(found)) for name, found in starts.items()}
    rows = [row(name, found, rates) for name, (found, rates) in known.items() if rates]
    heads = ["start", *(f"`{arm}` − `{baseline}`" for arm, baseline in PAIRS), "points for one planned"]
    return "\n".join(markdown_table(heads, rows, numbers=True))


def within(archive: Archive, rates: Sequence[Array]) -> str:
    """Correlation of planned points and gains over all arms that allocate, each against its uniform arm."""
    studies = [(archive.curves(), archive.study.design.watched)]
    rest = {arm: _without_allocation(given) for arm, given in archive.study.arms.items()}
    uniform = {of: arm for arm, of in rest.items() if _rule(archive, arm) == "uniform"}
    pairs = [(arm, uniform[of]) for arm, of in rest.items() if of in uniform and uniform[of] != arm]
    points = np.array([planned(archive, arm, rates) for arm, _ in pairs])
    gains = np.array([differences(studies, pair, AREA).mean() for pair in pairs])
    r, order = stats.pearsonr(points, gains)[0], stats.spearmanr(points, gains)[0]
    slope = points @ gains / (points @ points)
    name = archive.study.name
    return f"{name}: {len(pairs)} arms, r = {r:.2f}, Spearman {order:.2f}, {slope:.2f} for one planned"


def _without_allocation(given: Mapping[str, object]) -> str:
    return str(sorted((k, str(v)) for k, v in given.items() if not k.startswith("allocation.")))


def _rule(archive: Archive, arm: str) -> str:
    return config_of(archive.study, arm).allocation.rule


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    archives = {name: unpack(folder / f"{name}.json.xz") for names in STARTS.values() for name in names}
    print(table({start: [archives[name] for name in names] for start, names in STARTS.items()}), "\n")
    for name in ("facts-arms", "pairs-arms"):
        print(within(archives[name], first_rates([archives[name]])))


if __name__ == "__main__":
    main()
