"""Learned priors against the paper's losses, schedule and formulas; the empirical prior is the maximum."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import cho_solve, cholesky
from scipy.special import betaln, gammaln
from scipy.stats import betabinom, binom
from transformers import AutoTokenizer, BertConfig, BertModel

from hora_rl.allocator.priors import NAMES, UNCONDITIONED, fit_prior, log_loss, make_prior, outcomes
from hora_rl.allocator.priors.base import CYCLES, LEAST, MOST, fit_beta, load_state, save_state
from hora_rl.allocator.priors.features import sentence_features
from hora_rl.allocator.priors.probe import Probe, ProbePrior
from hora_rl.common.load import load

N, D, G0 = 80, 12, 8
FEATURES = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
RATE = 1 / (1 + np.exp(-2 * FEATURES[:, 0]))
"""Success rates of prompts, which depend on their features."""
LEARNED = [name for name in NAMES if name not in UNCONDITIONED]
FORETELL = [name for name in LEARNED if name != "gp"]
"""Not the authors' process: it takes a rate of 0 of 8 for certain, and here foretells worse than a coin."""


def log_choose(n: int, k: np.ndarray) -> np.ndarray:
    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)


def cycles(count: int, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(N)[:15] for _ in range(count)]
    return [(prompts, rng.binomial(G0, RATE[prompts])) for prompts in chosen]


@pytest.mark.parametrize("dual", [False, True])
def test_a_probe_s_loss_is_the_papers_likelihood(dual: bool) -> None:
    probe = Probe(D, dual, seed=3)
    x, c = torch.from_numpy(FEATURES).double(), torch.arange(N).double() % (G0 + 1)
    logit, s = probe(x)
    p = torch.sigmoid(logit).detach().numpy()
    s = s.detach().numpy()
    paper = betabinom(G0, s * p, s * (1 - p)) if dual else binom(G0, p)
    found = probe.loss(x, c, torch.full((N,), float(G0))).detach().numpy()
    choose = log_choose(G0, c.numpy())
    np.testing.assert_allclose(found - choose, -paper.logpmf(c.numpy()), rtol=1e-9, atol=1e-9)


def test_a_cycle_is_five_adam_steps_on_the_replay_weighted_by_age_and_an_average_of_them() -> None:
    prior = make_prior("hidden-dual", N, features=FEATURES, seed=3)
    assert isinstance(prior, ProbePrior)
    probe = Probe(D, dual=True, seed=3)
    adam = torch.optim.Adam(probe.parameters(), lr=1e-3, weight_decay=1e-2)
    average = [p.detach().clone() for p in probe.parameters()]
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    for cycle in cycles(13):
        prior.update(*cycle, G0)
        seen = [*seen, cycle][-10:]
        for _ in range(5):
            adam.zero_grad()
            total = torch.zeros((), dtype=torch.float64)
            for age, (prompts, successes) in enumerate(reversed(seen)):
                x = torch.from_numpy(FEATURES[prompts]).double()
                c = torch.from_numpy(successes).double()
                total = total + 0.97**age * probe.loss(x, c, torch.full_like(c, G0)).sum()
            (total / sum(0.97**age * len(p) for age, (p, _) in enumerate(reversed(seen)))).backward()
            adam.step()
            for old, new in zip(average, probe.parameters(), strict=True):
                old.mul_(0.99).add_(new.detach(), alpha=0.01)
    with torch.no_grad():
        for now, old in zip(probe.parameters(), average, strict=True):
            now.copy_(old)
        logit, strength = probe(torch.from_numpy(FEATURES).double())
    alpha, beta = prior.predict(np.arange(N))
    np.testing.assert_allclose(alpha / (alpha + beta), torch.sigmoid(logit).numpy(), rtol=1e-9)
    np.testing.assert_allclose(alpha + beta, strength.numpy(), rtol=1e-9)


@pytest.mark.parametrize("name", LEARNED)
def test_a_prior_restored_from_a_file_goes_on_as_if_never_stopped(name: str, tmp_path: Path) -> None:
    prior = make_prior(name, N, features=FEATURES)
    first, second = cycles(12), cycles(3, seed=5)
    for prompts, successes in first:
        prior.update(prompts, successes, G0)
    save_state(tmp_path / "prior.npz", name, prior.state_dict())
    again = make_prior(name, N, features=FEATURES, state=load_state(tmp_path / "prior.npz", name), seed=9)
    for prompts, successes in second:
        prior.update(prompts, successes, G0)
        again.update(prompts, successes, G0)
    for a, b in zip(prior.predict(np.arange(N)), again.predict(np.arange(N)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    with pytest.raises(ValueError, match="not of fixed"):
        load_state(tmp_path / "prior.npz", "fixed")


def test_the_static_probe_does_not_change_during_training() -> None:
    prior = make_prior("hidden-static", N, features=FEATURES)
    before = prior.predict(np.arange(N))
    for prompts, successes in cycles(3):
        prior.update(prompts, successes, G0)
    np.testing.assert_array_equal(before, prior.predict(np.arange(N)))


def test_the_process_is_that_of_its_authors() -> None:
    """The recursion of VIP's published code with its own numbers, by Cholesky factors."""
    prior = make_prior("gp", N, features=FEATURES)
    x = FEATURES.astype(np.float64)
    distance = np.linalg.norm(x[:, None] - x[None], axis=-1)
    kernel = np.exp(-0.5 * (distance / np.median(distance[np.triu_indices(N, k=1)])) ** 2)
    mean = np.full(N, -1.0)
    for prompts, successes in [*cycles(3), (np.array([4, 7]), np.array([0, G0]))]:
        prior.update(prompts, successes, G0)
        rate = np.clip(successes / G0, 1e-6, 1 - 1e-6)
        logit = np.log(rate / (1 - rate))
        factor = cholesky(kernel[np.ix_(prompts, prompts)] + 1e-4 * np.eye(len(prompts)), lower=True)
        mean += kernel[:, prompts] @ cho_solve((factor, True), logit - mean[prompts])
        mean[prompts] = logit
    alpha, beta = prior.predict(np.arange(N))
    expected = np.clip(1 / (1 + np.exp(-mean)), 1e-6, 1 - 1e-6)
    np.testing.assert_allclose(alpha / (alpha + beta), expected, rtol=1e-5)
    assert alpha[4] == pytest.approx(2e-6)
    assert beta[7] == pytest.approx(2e-6)


@pytest.mark.parametrize("name", LEARNED)
def test_a_prior_that_turns_nan_stops_with_its_name(name: str) -> None:
    prior = make_prior(name, N, features=FEATURES)
    prior.update(*cycles(1)[0], G0)
    state = {k: np.full_like(v, np.nan) if v.dtype.kind == "f" else v for k, v in prior.state_dict().items()}
    prior.load_state_dict(state)
    with pytest.raises(ValueError, match=name):
        prior.predict(np.arange(3))


def test_missing_or_foreign_features_are_refused_with_the_priors_name() -> None:
    with pytest.raises(ValueError, match="hidden-dual"):
        make_prior("hidden-dual", N)
    with pytest.raises(ValueError, match=r"gp: features.*\(80, d\)"):
        make_prior("gp", N, features=np.zeros((3, 4), dtype=np.float32))
    with pytest.raises(ValueError, match="prompt 2"):
        make_prior("gp", 3, features=np.array([[1.0], [2.0], [np.nan]]))


def test_the_fixed_prior_takes_its_numbers() -> None:
    alpha, beta = make_prior("fixed(2, 0.5)", 3).predict(np.arange(3))
    np.testing.assert_array_equal([alpha, beta], [[2.0] * 3, [0.5] * 3])


@pytest.mark.parametrize(
    "name", ["hidden", "gp(1, 2)", "fixed(1)", "fixed(0, 1)", "fixed(1, inf)", "fixed(a, b)"]
)
def test_a_prior_of_no_name_or_other_numbers_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(name)):
        make_prior(name, N)


def test_log_loss_of_known_counts() -> None:
    successes, trials = np.array([0, 8]), np.full(2, 8)
    np.testing.assert_allclose(log_loss(np.full(2, 0.5), successes, trials), np.log(2))
    with pytest.raises(ValueError, match="rate"):
        log_loss(np.array([0.5, 1.0]), successes, trials)


@pytest.mark.parametrize("name", FORETELL)
def test_a_fit_from_a_runs_records_is_judged_on_prompts_it_has_not_seen(name: str) -> None:
    successes = np.random.default_rng(4).binomial(G0, RATE)
    records = [{"prompt_index": i, "successes": int(c), "trials": G0} for i, c in enumerate(successes)]
    prior = make_prior(name, N, features=FEATURES)
    found = fit_prior(prior, *outcomes(records), held_out=0.25)
    assert (found.fitted_on, found.held_out) == (60, 20)
    assert found.log_loss < found.mean_rate_log_loss
    with pytest.raises(ValueError, match="fixed"):
        fit_prior(make_prior("fixed", N), *outcomes(records))
    with pytest.raises(ValueError, match="records"):
        outcomes([])


@pytest.mark.parametrize(("own_limit", "same"), [(8, True), (64, False)])
def test_a_text_is_cut_as_sentence_transformers_does(own_limit: int, same: bool, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(load("tiny").model.path)
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": own_limit}))
    start = "1+2=?" * 4
    one, other = sentence_features(str(tmp_path), [start, start + "987"])
    assert np.allclose(one, other, atol=1e-6) == same


def drawn(rates: np.ndarray, seed: int = 6) -> tuple[np.ndarray, np.ndarray]:
    trials = np.full(len(rates), G0)
    return np.random.default_rng(seed).binomial(trials, rates), trials


def any_counts(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts of equal prompts, or of a Beta anywhere within the bounds; many have the optimum on one."""
    rng = np.random.default_rng(seed)
    prompts, trials = rng.choice([4, 20, 60, 600]), rng.choice([1, 2, 4, 8, 16])
    alike = np.full(prompts, rng.choice([0.02, 0.1, 0.4, 0.9]))
    rates = alike if seed % 3 == 0 else rng.beta(*np.exp(rng.uniform(-4, 4, 2)), prompts)
    return rng.binomial(trials, rates), np.full(prompts, trials)


ON_A_BOUND = {
    "none right": drawn(np.zeros(60)),
    "all right": drawn(np.ones(60)),
    "60 at 0.1": drawn(np.full(60, 0.1)),
    "600 at 0.1": drawn(np.full(600, 0.1)),
    "60 at 0.9": drawn(np.full(60, 0.9)),
    "90% never, 10% always": drawn(np.repeat([0.0, 1.0], [54, 6])),
}


@pytest.mark.parametrize(
    ("successes", "trials"),
    [
        *(pytest.param(*counts, id=name) for name, counts in ON_A_BOUND.items()),
        *(pytest.param(*any_counts(seed), id=f"seed {seed}") for seed in range(40)),
    ],
)
def test_no_alpha_and_beta_within_the_bounds_are_likelier(successes: np.ndarray, trials: np.ndarray) -> None:
    def log_likelihood(alpha: np.ndarray | float, beta: np.ndarray | float) -> np.ndarray:
        pairs, times = np.unique(np.column_stack([successes, trials]), axis=0, return_counts=True)
        total = -len(trials) * betaln(alpha, beta)
        for (hits, tried), often in zip(pairs, times, strict=True):
            total = total + often * betaln(alpha + hits, beta + tried - hits)
        return total

    grid = np.geomspace(LEAST, MOST, 90)
    found = fit_beta(successes, trials)
    assert LEAST <= min(found) <= max(found) <= MOST
    assert log_likelihood(*found) >= log_likelihood(*np.meshgrid(grid, grid)).max() - 0.02


def test_it_is_the_given_prior_until_the_first_cycle_and_then_that_of_the_last_ten() -> None:
    rng = np.random.default_rng(3)
    prior = make_prior("empirical(0.7, 2)", 60)
    alpha, beta = prior.predict(np.arange(60))
    assert set(zip(alpha.tolist(), beta.tolist(), strict=True)) == {(0.7, 2.0)}
    cycles = [rng.binomial(G0, rng.beta(0.323 + k / 10, 0.5, 60)) for k in range(CYCLES + 3)]
    for successes in cycles:
        prior.update(np.arange(60), successes, G0)
    kept = np.concatenate(cycles[-CYCLES:])
    alpha, beta = prior.predict(np.arange(2))
    assert (alpha[0], beta[0]) == fit_beta(kept, np.full(len(kept), G0))
