"""The archive of the study, inner products of all scores, and its page: r, overlap, steps, intervals."""

from pathlib import Path

import numpy as np
from scipy import stats

from hora_rl.evaluation.report.markdown import markdown_table
from research.gradients.bank import kept, read
from research.gradients.design import Design
from research.gradients.noise import (
    Array,
    Index,
    Mask,
    Moments,
    bootstrap,
    jackknife,
    moments,
    overlap,
    pooled_r,
    without,
)
from research.gradients.steps import objectives, rules, steps


def pack(folder: Path, design: Design, archive: Path) -> None:
    """Write the inputs of the figures: inner products (N, N), prompt and kind of each score, counts."""
    prompts = kept(read(folder), design)
    files = sorted(
        (f for f in (folder / "scores").glob("*.npy") if not f.name.endswith(".part.npy")),
        key=lambda f: [int(x) for x in f.stem.split("-")],
    )
    at = np.array([[int(x) for x in f.stem.split("-")] for f in files])
    vectors = np.stack([np.load(f) for f in files])
    np.savez_compressed(
        archive,
        gram=np.triu(vectors @ vectors.T),
        owner=at[:, 0],
        right=np.array([prompts[k].right[i] for k, i in at]),
        hits=np.array([sum(p.right) for p in prompts]),
        samples=np.array([len(p.right) for p in prompts]),
        texts=np.array(
            [
                len({tuple(p.completions[i]) for k, i in at if k == j and p.right[i]})
                for j, p in enumerate(prompts)
            ]
        ),
        tokens=np.array([np.mean([len(c) for c in p.completions]) for p in prompts]),
        tried=len(read(folder)),
        errors=np.load(folder / "errors.npy"),
    )


def write(archive: Path, design: Design, page: Path) -> None:
    """The page of an archive."""
    with np.load(archive) as data:
        saved = {name: data[name] for name in data.files}
    gram = (saved["gram"] + np.triu(saved["gram"], 1).T).astype(float)
    owner, right, rate = saved["owner"], saved["right"], saved["hits"] / saved["samples"]
    m = moments(gram, owner, right, rate)
    rarer = Moments(rate / design.rarer, m.signal, m.hit_noise, m.miss_noise)
    scored = np.array(
        [[(right & (owner == i)).sum(), (~right & (owner == i)).sum()] for i in range(len(rate))]
    )
    parts = [
        "# What an allocation does to one step's gradient where right completions differ",
        *([_design(design)] if design.confirms else []),
        f"{len(rate)} prompts of {int(saved['tried'])} candidates, {int(saved['samples'][0])} completions "
        f"each, {saved['tokens'].mean():.0f} tokens on average; scores of {scored[:, 0].sum()} hits and "
        f"{scored[:, 1].sum()} misses. Error of a sketched inner product over |x||y|: "
        f"{np.sqrt((saved['errors'] ** 2).mean()):.4f} (root mean square of {len(saved['errors'])}).",
        _noise(m, scored[:, 0], saved["texts"]),
        _misses(gram, owner, right, m),
        _steps("One step at equal rollouts", m, design),
        _steps(f"If successes were {design.rarer} times rarer", rarer, design),
    ]
    page.write_text("\n\n".join(parts) + "\n")


def _design(design: Design) -> str:
    lines = [f"- {line}" for line in (*design.confirms, *design.refutes, *design.limits)]
    return "\n".join(["## Written down before it ran", "", *lines])


def _noise(m: Moments, hits: Array, texts: Array) -> str:
    r, (low, high) = pooled_r(m), bootstrap(m, pooled_r)
    each = m.hit_noise / m.norms
    cosine = m.norms / (m.norms + m.hit_noise)
    half, of_r = jackknife(np.array([[overlap(m[at]), pooled_r(m[at])] for at in without(len(m.rate))]))
    trend = stats.spearmanr(m.rate, cosine)
    rows = [
        (f"{p:.2f}", str(c), str(t), f"{x:.1f}", f"{s:.3f}")
        for p, c, t, x, s in sorted(zip(m.rate, hits, texts, each, cosine, strict=True))
    ]
    heads = ("success rate", "hits scored", "different texts", "r", "cosine of two hits, 1/(1 + r)")
    lines = [
        "## The noise of one hit",
        "",
        f"**r = {r:.1f} ({low:.1f} to {high:.1f}), pooled** (bootstrap over prompts; jackknife ± "
        f"{of_r:.1f}); median of the prompts {np.median(each):.1f}. Overlap of different prompts: "
        f"**{overlap(m):.2f} ± {half:.2f}** of |μ|². Rank correlation of success rate and cosine: "
        f"{trend.statistic:+.2f} (p = {trend.pvalue:.2f}).",
        "",
        *markdown_table(heads, rows, numbers=True),
    ]
    return "\n".join(lines)


def _misses(gram: Array, owner: Index, right: Mask, m: Moments) -> str:
    """All scores have mean 0, so hits and misses must point against each other by a known amount."""
    n = range(len(m.rate))
    seen = np.array([gram[np.ix_(right & (owner == i), ~right & (owner == i))].mean() for i in n])
    expected = -m.norms * m.rate / (1 - m.rate)
    apart = seen - expected
    half = jackknife(np.array([apart[at].sum() / m.norms[at].sum() for at in without(len(m.rate))]))
    return (
        f"A check of scores and sampler: Σ μ_hit·μ_miss is {np.sum(seen) / m.norms.sum():+.2f} of Σ|μ_hit|², "
        f"and {expected.sum() / m.norms.sum():+.2f} by p μ_hit + (1 - p) μ_miss = 0 (± {half:.2f}). "
        f"Variance of one miss over that of one hit: {m.miss_noise.sum() / m.hit_noise.sum():.2f}."
    )


def _steps(title: str, m: Moments, design: Design) -> str:
    """ValueError where the scores are too few to tell |μ|² from 0."""
    r = pooled_r(m)
    if r <= 0:
        raise ValueError(f"pooled r is {r:.3g}: |μ|² cannot be told from 0, more scores are needed")
    found = steps(m, design, r)
    alone = steps(Moments(m.rate, np.diag(m.norms), m.hit_noise, m.miss_noise), design, r)
    left = np.array([steps(m[at], design, r) for at in without(len(m.rate))])
    half, less = jackknife(left), jackknife(left - left[:, :1])
    lines = [
        f"## {title}",
        "",
        f"G = {design.group_size}, G0 = {design.pre_rollouts}, {len(m.rate)} prompts, {design.batches} "
        f"batches a rule; first_hit and expected_worth in {design.rounds} rounds. Cosine to M = Σ ∇log p; "
        "− uniform: less the same objective under uniform. Bias² and variance over |M|², scaled so that "
        "E[x]·M = |M|². ± is half a 95% interval, jackknife over prompts. Orthogonal: with the overlap at 0.",
        "",
    ]
    rows, best, named = [], [], list(rules(r, design.rounds))
    for j, objective in enumerate(objectives(r)):
        sure = found[:, j, 0] - found[0, j, 0] > less[:, j, 0]
        first = int(np.argmax(np.where(sure, found[:, j, 0], found[0, j, 0])))
        best.append(f"{objective} → {named[first]}")
        for i, rule in enumerate(named):
            (cosine, *parts, snr), (by, *of_parts, _) = found[i, j], half[i, j]
            gain = f"{cosine - found[0, j, 0]:+.3f} ± {less[i, j, 0]:.3f}" if i else ""
            noise = [f"{x:.2f} ± {e:.2f}" for x, e in zip(parts, of_parts, strict=True)]
            ends = f"{snr:.2f}", f"{alone[i, j, 0]:.3f}"
            rows.append((objective, rule, f"{cosine:.3f} ± {by:.3f}", gain, *noise, *ends))
    heads = ("objective", "rule", "cosine", "− uniform", "bias²", "variance", "SNR", "orthogonal")
    table = markdown_table(heads, rows, numbers=True)
    table[1] = table[1].replace("|---|---:|", "|---|---|", 1)  # the rule is a name
    chosen = (
        "**The rule with the largest cosine of those whose gain over uniform excludes 0, else uniform** "
        f"(five rules an objective, no correction): {'; '.join(best)}."
    )
    return "\n".join([*lines, chosen, "", *table])
