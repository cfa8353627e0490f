"""What one more planned hit is worth: the gain of an allocation per point of prompts with a hit it finds.

    python -m research.study.exchange research/results

Planned are the hits of the first batches alone: the arm's allocation on the success rates of the untrained
policy, less uniform sampling on the same prompts. No outcome of training enters. The rate of a start is the
slope through the origin of the area under Pass@16 on the planned points, over `PAIRS`; its interval is
Student's over seeds. The last column has the planned points of `hora` at the paper's G and G0.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from hora_rl.allocator import Session
from hora_rl.allocator.session import simulate
from hora_rl.evaluation.report.tables import markdown_table
from research.report.curves import Array
from research.study.archive import GROUPS, RATES, Archive, unpack
from research.study.cells import config_of
from research.study.starts import STARTS, differences

PAIRS = (("hora", "grpo"), ("likelihood-stop", "likelihood"))
"""Of one objective each, so that only the allocation differs."""
AREA = "Pass@16, area"
DRAWS = 200
PAPER = {"rollout.group_size": 32, "rollout.pre_rollouts": 8}


def first_rates(archives: Sequence[Archive]) -> list[Array]:
    """The success rates (Γ,) of every first batch, one a seed: those of the untrained policy."""
    batches: dict[int, Array] = {}
    for records in (archive.records[arm] for archive in archives for arm in archive.records):
        for seed, record in records.items():
            if RATES in record:
                step, rate = np.array(record[f"{GROUPS}step"]), np.array(record[RATES])
                batches.setdefault(seed, rate[step == step[0]])
    return [rate for _, rate in sorted(batches.items())]


def planned(archive: Archive, arm: str, rates: Sequence[Array], **sizes: object) -> float:
    """Points of prompts with a hit that the arm's allocation finds more than uniform sampling, with `sizes`
    in place of the study's."""
    config, random = config_of(archive.study, arm, **sizes), np.random.default_rng(0)
    rollout, rule = config.rollout, config.allocation.under(config.allocation.rule)
    hit = []
    for rate in rates:
        for _ in range(DRAWS):
            budget = len(rate) * (rollout.group_size - rollout.pre_rollouts)
            session = Session(len(rate), budget, rule=rule.rule, rounds=rule.rounds, stop=rule.stop)
            hits, _sizes = simulate(session, rate.clip(0.0, 1.0), rollout.pre_rollouts, random)
            hit.append(hits > 0)
    uniform = 1 - (1 - np.concatenate(rates)) ** rollout.group_size
    return 100 * float(np.mean(np.concatenate(hit)) - uniform.mean())


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
    return [name, *shown, f"{slope:.2f} ± {half:.2f}", f"{planned(archives[0], 'hora', rates, **PAPER):+.1f}"]


def table(starts: Mapping[str, Sequence[Archive]]) -> str:
    rated = {name: (archives, first_rates(archives)) for name, archives in starts.items()}
    rows = [row(name, archives, rates) for name, (archives, rates) in rated.items() if rates]
    pairs = (f"`{arm}` − `{baseline}`" for arm, baseline in PAIRS)
    heads = ["start", *pairs, "points for one planned", "G = 32, G0 = 8"]
    return "\n".join(markdown_table(heads, rows, numbers=True))


def within(archive: Archive, rates: Sequence[Array]) -> str:
    """Correlation of planned points and gains over all arms that allocate, each against its uniform arm."""
    studies = [(archive.curves(), archive.study.design.watched)]
    rest = {
        arm: sorted((key, str(value)) for key, value in settings.items() if not key.startswith("allocation."))
        for arm, settings in archive.study.arms.items()
    }
    rules = {arm: config_of(archive.study, arm).allocation.rule for arm in rest}
    uniform = {str(of): arm for arm, of in rest.items() if rules[arm] == "uniform"}
    pairs = [(arm, uniform[str(of)]) for arm, of in rest.items() if uniform.get(str(of), arm) != arm]
    points = np.array([planned(archive, arm, rates) for arm, _ in pairs])
    gains = np.array([differences(studies, pair, AREA).mean() for pair in pairs])
    r, order = stats.pearsonr(points, gains)[0], stats.spearmanr(points, gains)[0]
    slope = points @ gains / (points @ points)
    name = archive.study.name
    return f"{name}: {len(pairs)} arms, r = {r:.2f}, Spearman {order:.2f}, {slope:.2f} for one planned"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    archives = {name: unpack(folder / f"{name}.json.xz") for names in STARTS.values() for name in names}
    print(table({start: [archives[name] for name in names] for start, names in STARTS.items()}), "\n")
    for name in ("facts-arms", "pairs-arms"):
        print(within(archives[name], first_rates([archives[name]])))


if __name__ == "__main__":
    main()
