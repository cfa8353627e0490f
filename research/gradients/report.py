"""The archive of the study, the moments of all scores, and its page: r, overlap, steps, intervals."""

from pathlib import Path

import numpy as np
from scipy import stats

from hora_rl.common.errors import RunError
from hora_rl.evaluation.report.tables import markdown_table
from research.gradients.bank import kept, read
from research.gradients.design import Design
from research.gradients.noise import (
    Array,
    Index,
    Moments,
    Sums,
    bootstrap,
    half_interval,
    jackknife,
    jackknife_ratio,
    moments,
    overlap,
    pooled_r,
    shared_r,
    sums,
    without,
)
from research.gradients.steps import counts, objectives, rules, steps

PARTS = 5
"""Of the prompts, by success rate, in the table of r."""
FEWEST = 5
"""Sets of prompts, for an interval over them."""


def pack(folder: Path, design: Design, archive: Path) -> None:
    """Write the inputs of the figures: the sums of `Sums`, and the counts of the bank."""
    prompts = kept(read(folder), design)
    files = sorted(
        (f for f in (folder / "scores").glob("*.npy") if not f.name.endswith(".part.npy")),
        key=lambda f: [int(x) for x in f.stem.split("-")],
    )
    at = np.array([[int(x) for x in f.stem.split("-")] for f in files])
    right = np.array([prompts[k].right[i] for k, i in at])
    scored = sums(np.stack([np.load(f) for f in files]), at[:, 0], right)
    texts = [{tuple(p.completions[i]) for k, i in at if k == j and p.right[i]} for j, p in enumerate(prompts)]
    np.savez_compressed(
        archive,
        count=scored.count,
        inner=np.triu(scored.inner).astype(np.float32),
        squares=scored.squares,
        hits=np.array([sum(p.right) for p in prompts]),
        samples=np.array([len(p.right) for p in prompts]),
        texts=np.array([len(different) for different in texts]),
        tokens=np.array([np.mean([len(c) for c in p.completions]) for p in prompts]),
        tried=len(read(folder)),
        errors=np.load(folder / "errors.npy"),
    )


def page(archive: Path, design: Design) -> str:
    """The page of an archive."""
    with np.load(archive) as data:
        saved = {name: data[name] for name in data.files}
    inner, rate = saved["inner"].astype(float), saved["hits"] / saved["samples"]
    totals = Sums(saved["count"], inner + np.triu(inner, 1).T, saved["squares"])
    m, n = moments(totals, rate), len(rate)
    rarer = Moments(rate / design.rarer, m.signal, m.hit_noise, m.miss_noise)
    parts = [
        "# What an allocation does to one step's gradient where right completions differ",
        *([_design(design)] if design.confirms else []),
        f"{n} prompts of {int(saved['tried'])} candidates, {int(saved['samples'][0])} completions "
        f"each, {saved['tokens'].mean():.0f} tokens on average; scores of {totals.count[:n].sum()} hits and "
        f"{totals.count[n:].sum()} misses. Error of a sketched inner product over |x||y|: "
        f"{np.sqrt((saved['errors'] ** 2).mean()):.4f} (root mean square of {len(saved['errors'])}).",
        _noise(m, totals.count[:n], saved["texts"], design.prompts_per_batch),
        _misses(totals, m),
        _steps("One step at equal rollouts", m, saved["tokens"], design),
        _steps(f"If successes were {design.rarer} times rarer", rarer, saved["tokens"], design),
    ]
    return "\n\n".join(parts)


def _design(design: Design) -> str:
    lines = [f"- {line}" for line in (*design.confirms, *design.refutes, *design.limits)]
    return "\n".join(["## Design", "", *lines])


def _noise(m: Moments, hits: Index, texts: Index, prompts: int) -> str:
    n, r, (low, high) = len(m.rate), pooled_r(m), bootstrap(m, pooled_r)
    left_out = np.array([[overlap(m[at]), pooled_r(m[at])] for at in without(n)])
    half, of_r = jackknife(left_out)
    trend = stats.spearmanr(m.rate, m.norms / (m.norms + m.hit_noise))
    rows = []
    for at in np.array_split(np.argsort(m.rate), min(n, PARTS)):
        some, ends = pooled_r(m[at]), bootstrap(m[at], pooled_r)
        rows.append(
            (
                f"{m.rate[at].min():.2f} to {m.rate[at].max():.2f}",
                *(str(x) for x in (len(at), hits[at].sum(), texts[at].sum())),
                f"{some:.1f} ({ends[0]:.1f} to {ends[1]:.1f})",
                f"{1 / (1 + some):.3f}",
            )
        )
    heads = ("success rate", "prompts", "hits scored", "different texts", "r", "cosine of two, 1/(1 + r)")
    lines = [
        "## The noise of one hit",
        "",
        f"**r = {r:.1f} ({low:.1f} to {high:.1f}), pooled** (bootstrap over prompts; jackknife ± "
        f"{of_r:.1f}); median of the prompts {np.median(m.hit_noise / m.norms):.1f}. Overlap of different "
        f"prompts: **{overlap(m):.2f} ± {half:.2f}** of |μ|². Rank correlation of success rate and cosine: "
        f"{trend.statistic:+.2f} (p = {trend.pvalue:.2g}).",
        "",
        _shared(m, left_out, prompts),
        "",
        *markdown_table(heads, rows, numbers=True),
    ]
    return "\n".join(lines)


def _shared(m: Moments, left_out: Array, prompts: int) -> str:
    """r/(1 - ρ) with its interval, from (ρ, r) with each prompt left out (n, 2)."""
    if not (max(left_out[:, 0].max(), overlap(m)) < 1 and left_out[:, 1].min() > 0):
        return "r/(1 − ρ) cannot be told: the overlap ρ is not below 1, or r not above 0, without one prompt."
    low, high = jackknife_ratio(shared_r(m), left_out[:, 1] / (1 - left_out[:, 0]))
    plain = f"{pooled_r(m):.1f},{max(0.0, overlap(m)):.2f},{prompts}"
    return (
        f"**r/(1 − ρ) = {shared_r(m):.0f} ({low:.0f} to {high:.0f})** (jackknife over prompts, in its "
        f"logarithm): the noise that `expected_worth(r, ρ)` and `shrunken(r, ρ)` go by. For a plan: "
        f"`hora plan COUNTS --gradients {plain}`."
    )


def _misses(scored: Sums, m: Moments) -> str:
    """All scores have mean 0, so hits and misses must point against each other by a known amount."""
    n = len(m.rate)
    seen, expected = np.diag(scored.means[:n, n:]), -m.norms * m.rate / (1 - m.rate)
    apart = seen - expected
    half = jackknife(np.array([apart[at].sum() / m.norms[at].sum() for at in without(n)]))
    return (
        f"A check of scores and sampler: Σ μ_hit·μ_miss is {np.sum(seen) / m.norms.sum():+.2f} of Σ|μ_hit|², "
        f"and {expected.sum() / m.norms.sum():+.2f} by p μ_hit + (1 - p) μ_miss = 0 (± {half:.2f}). "
        f"Variance of one miss over that of one hit: {m.miss_noise.sum() / m.hit_noise.sum():.2f}."
    )


def _steps(title: str, m: Moments, tokens: Array, design: Design) -> str:
    """Raises RunError where prompts or scores are too few."""
    r, n = pooled_r(m), len(m.rate)
    if r <= 0:
        raise RunError(f"pooled r is {r:.3g}: |μ|² cannot be told from 0, more scores are needed")
    if n < 2 * FEWEST:
        raise RunError(f"{n} prompts have enough hits and misses; an interval needs {2 * FEWEST}")
    of, by = max(FEWEST, n // design.prompts_per_batch), rules(r, design.rounds, m.rate)
    named, flat = list(by), Moments(m.rate, np.diag(m.norms), m.hit_noise, m.miss_noise)
    each, alone, spent = [], [], []
    for at in (np.arange(i, n, of) for i in range(of)):
        played = [counts(m.rate[at], design, rule) for rule in by.values()]
        each.append(steps(m[at], played, r))
        alone.append(steps(flat[at], played, r))
        spent.append([(size @ tokens[at]).mean() for _, size in played])
    all_, orthogonal, tokens_of = np.array(each), np.mean(alone, axis=0), np.sum(spent, axis=0)
    means, half, less = all_.mean(axis=0), half_interval(all_), half_interval(all_ - all_[:, :1])
    shares = ", ".join(
        f"{name} {x:.3f}" for name, x in zip(named[1:], tokens_of[1:] / tokens_of[0], strict=True)
    )
    lines = [
        f"## {title}",
        "",
        f"G = {design.group_size}, G0 = {design.pre_rollouts}; {of} disjoint sets of {n // of} prompts or one"
        f" more, {design.batches} batches of each a rule; first_hit and expected_worth in {design.rounds} "
        "rounds. Cosine to M = Σ ∇log p of the set; − uniform: less the same objective under uniform. Bias² "
        "and variance over |M|², scaled so that E[x]·M = |M|². ± is half a 95% interval over the sets. "
        f"Orthogonal: with the overlap at 0. Tokens over uniform's: {shares}.",
        "",
    ]
    rows, best = [], []
    for j, objective in enumerate(objectives(r)):
        sure = means[:, j, 0] - means[0, j, 0] > less[:, j, 0]
        first = int(np.argmax(np.where(sure, means[:, j, 0], means[0, j, 0])))
        best.append(f"{objective} → {named[first]}")
        for i, rule in enumerate(named):
            (cosine, *parts, snr), (by, *of_parts, _) = means[i, j], half[i, j]
            gain = f"{cosine - means[0, j, 0]:+.3f} ± {less[i, j, 0]:.3f}" if i else ""
            noise = [f"{x:.2f} ± {e:.2f}" for x, e in zip(parts, of_parts, strict=True)]
            ends = f"{snr:.2f}", f"{orthogonal[i, j, 0]:.3f}"
            rows.append((objective, rule, f"{cosine:.3f} ± {by:.3f}", gain, *noise, *ends))
    heads = ("objective", "rule", "cosine", "− uniform", "bias²", "variance", "SNR", "orthogonal")
    table = markdown_table(heads, rows, numbers=True)
    table[1] = table[1].replace("|---|---:|", "|---|---|", 1)  # the rule is a name
    chosen = (
        "**The rule with the largest cosine of those whose gain over uniform excludes 0, else uniform** "
        f"({len(named) - 1} rules an objective, no correction): {'; '.join(best)}."
    )
    return "\n".join([*lines, chosen, "", *table])
