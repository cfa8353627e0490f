"""G0 and the learned priors on a language model's success rates, without training: prompts with a hit.

    python -m research.prior_ablation tasks/smollm2 tasks/minilm > research/results/priors-smollm2.md

The success rate of each prompt is the task's exact one; Phase A is drawn from it. A learned prior is first
fitted on Phase A of the prompts that are not trained, as the paper's on rollouts held out, then follows
`EPOCHS` epochs of the trained prompts as in a run. The figure is the expected number of prompts with a hit.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from transformers import AutoModelForCausalLM

from hora_rl.allocator import allocate
from hora_rl.allocator.priors import Prior, make_prior
from hora_rl.allocator.priors.base import LearnedPrior
from hora_rl.allocator.priors.features import hidden_state_features, sentence_features
from hora_rl.allocator.priors.make import NAMES, UNCONDITIONED
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.evaluation.report.markdown import markdown_table
from research.tasks.recall import TRAINED, ExactSuccess, RecallTask, encode_prompts, load_task

SIZES = ((16, 4), (16, 8), (32, 8), (32, 16))
"""(G, G0)."""
BATCH, EPOCHS, SEEDS = 16, 2, 20
Rates = NDArray[np.float64]
Features = dict[bool, NDArray[np.float32]]
"""By whether they are the policy's hidden states."""


def with_hit(c: NDArray, extra: NDArray, rate: Rates) -> tuple[float, float]:
    """Expected shares of prompts (n,) with a hit at all and with one in Phase B, which hit utility maximises,
    given `c` hits in Phase A and `extra` rollouts."""
    later = 1 - (1 - rate) ** extra
    return float(np.mean(np.where(c > 0, 1.0, later))), float(np.mean(later))


def run(prior: Prior, rate: Rates, trained: NDArray, size: tuple[int, int], seed: int) -> NDArray:
    """Means of `with_hit` over the batches."""
    (g, g0), found = size, []
    random = np.random.default_rng([seed, g, g0])
    for _ in range(EPOCHS):
        order = random.permutation(trained)
        for rows in np.split(order[: len(order) // BATCH * BATCH], len(order) // BATCH):
            c = random.binomial(g0, rate[rows])
            extra = allocate(c, g0, BATCH * (g - g0), prior.predict(rows))
            found.append(with_hit(c, extra, rate[rows]))
            prior.update(rows, c, g0)
    return np.mean(found, axis=0)


def fitted(name: str, features: Features, rate: Rates, others: NDArray, g0: int, seed: int) -> Prior:
    """A prior over all prompts, fitted on one Phase A of `others`."""
    known = None if name in UNCONDITIONED else features[name.startswith("hidden")]
    prior = make_prior(name, n=len(rate), features=known, seed=seed)
    if isinstance(prior, LearnedPrior):
        prior.fit(
            others, np.random.default_rng([seed, 1]).binomial(g0, rate[others]), np.full(len(others), g0)
        )
    return prior


def table(rate: Rates, trained: NDArray, features: Features) -> list[str]:
    """The lines of the table: shares in %, and differences to the fixed prior paired by seed."""
    others = np.setdiff1d(np.arange(len(rate)), trained)
    rows = {name: [name] for name in NAMES}
    for g, g0 in SIZES:
        shares = {
            name: np.array(
                [
                    run(fitted(name, features, rate, others, g0, seed), rate, trained, (g, g0), seed)
                    for seed in range(SEEDS)
                ]
            )
            for name in NAMES
        }
        for name, share in shares.items():
            apart = 100 * (share - shares["fixed"])
            half = stats.t.ppf(0.975, SEEDS - 1) * apart.std(ddof=1, axis=0) / np.sqrt(SEEDS)
            rows[name] += (
                [f"{100 * x:.2f}" for x in share.mean(axis=0)]
                if name == "fixed"
                else [f"{x:+.2f} ± {h:.2f}" for x, h in zip(apart.mean(axis=0), half, strict=True)]
            )
    heads = ("prior", *(f"G {g}, G0 {g0}, {what}" for g, g0 in SIZES for what in ("any", "B")))
    return markdown_table(heads, rows.values(), numbers=True)


def rates_and_features(folder: Path, task: RecallTask, sentences: str) -> tuple[Rates, Features]:
    """Exact success of every prompt of the task, and both kinds of features."""
    model = str(folder / "model")
    tokenizer = load_tokenizer(model)
    policy, rate = AutoModelForCausalLM.from_pretrained(model), np.zeros(len(task.questions))
    for name, places in task.sets.items():
        rate[list(places)] = ExactSuccess(task, name, tokenizer)(policy).sum(axis=1)
    tokens = encode_prompts(task.questions, tokenizer).tolist()
    return rate, {
        True: hidden_state_features(model, tokens),
        False: sentence_features(sentences, task.questions),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", type=Path, help="folder of a task of research.tasks.pretrained")
    parser.add_argument("features", help="sentence-embedding model of mpnet-dual and gp")
    given = parser.parse_args()
    task = load_task(given.task)
    rate, features = rates_and_features(given.task, task, given.features)
    trained = np.array(task.sets[TRAINED])
    low, high = np.quantile(rate[trained], (0.05, 0.95))
    lines = (
        f"# G0 and priors on the success rates of SmolLM2, {task.name}\n",
        f"{len(trained)} trained prompts, success {rate[trained].mean():.3f} on average, 5 and 95%:",
        f"{low:.3f} and {high:.3f}. Share of a batch's prompts with a hit under hit utility, in %: `any` in",
        f"both phases, `B` in Phase B, which the rule maximises. {BATCH} prompts a batch, {EPOCHS} epochs.",
        f"`fixed` is Beta(1,1); the others less it, ± half a 95% interval over {SEEDS} draws of Phase A.",
        "Uniform sampling has, of any,",
        f"{', '.join(f'{100 * np.mean(1 - (1 - rate[trained]) ** g):.2f} at G = {g}' for g in (16, 32))}.",
        "No training: `python -m research.prior_ablation`.\n",
    )
    print("\n".join(lines))
    print("\n".join(table(rate, trained, features)))


if __name__ == "__main__":
    main()
