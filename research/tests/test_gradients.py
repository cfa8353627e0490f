"""The offline study of one step's gradient: estimators against known values."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load as load_config
from hora_rl.deploy.launch.evaluation import load_benchmark
from hora_rl.evaluation.benchmarks import find_benchmark
from hora_rl.evaluation.samples import Sample, append, open_samples
from research.gradients import bank, report, scores
from research.gradients.__main__ import user_bank
from research.gradients.design import load
from research.gradients.noise import (
    Array,
    Moments,
    jackknife_ratio,
    moments,
    overlap,
    pooled_r,
    shared_r,
    sums,
    without,
)
from research.gradients.steps import Played, counts, objectives, step

DESIGN = load()


def synthetic(r: float, shared: float, n: int = 8, hits: int = 24, dim: int = 2000) -> tuple[Array, Moments]:
    """Means (n, dim) of squared norm about 1 and overlap `shared`, and moments of noisy scores of them."""
    random = np.random.default_rng(1)
    private, common = random.normal(size=(n, dim)), random.normal(size=dim)
    mean = (np.sqrt(1 - shared) * private + np.sqrt(shared) * common) / np.sqrt(dim)
    rate = np.full(n, 0.25)
    noise = random.normal(size=(n, 2 * hits, dim)) * np.sqrt(r / dim)
    all_ = np.concatenate([mean[:, None] + noise[:, :hits], -mean[:, None] / 3 + noise[:, hits:]], axis=1)
    flat = all_.reshape(-1, dim)
    owner, right = np.repeat(np.arange(n), 2 * hits), np.tile(np.arange(2 * hits) < hits, n)
    return mean, moments(sums(flat, owner, right), rate)


@pytest.mark.parametrize(("r", "shared"), [(0.0, 0.0), (0.5, 0.0), (15.0, 0.0), (15.0, 0.3)])
def test_r_and_overlap_are_those_of_the_scores(r: float, shared: float) -> None:
    mean, m = synthetic(r, shared)
    assert pooled_r(m) == pytest.approx(r / np.mean((mean**2).sum(1)), rel=0.12, abs=1e-9)
    assert overlap(m) == pytest.approx(shared, abs=0.08)
    assert m.miss_noise == pytest.approx(m.hit_noise, rel=0.15, abs=1e-9)


def test_shared_r_and_its_interval_hold_what_the_scores_have() -> None:
    mean, m = synthetic(15.0, 0.3, n=24)
    expected = 15.0 / np.mean((mean**2).sum(1)) / 0.7
    low, high = jackknife_ratio(shared_r(m), np.array([shared_r(m[at]) for at in without(24)]))
    assert low < expected < high < 2 * low
    assert shared_r(m) == pytest.approx(expected, rel=0.15)


def test_inner_products_of_sketches_err_by_one_over_the_root_of_their_width() -> None:
    random, width = torch.Generator().manual_seed(0), 251
    vectors = torch.randn(40, 20_000, generator=random)
    signs = scores.signs(20_000, width, seed=3)
    short = torch.stack([scores.sketch(v, signs) for v in vectors])
    norms = vectors.norm(dim=1)
    errors = ((short @ short.T - vectors @ vectors.T) / norms[:, None] / norms)[
        ~torch.eye(40, dtype=torch.bool)
    ]
    assert float(errors.mean()) == pytest.approx(0, abs=0.01)
    assert float(errors.square().mean().sqrt()) == pytest.approx(width**-0.5, rel=0.15)


@pytest.mark.parametrize("objective", list(objectives(15.0)))
def test_a_step_has_the_moments_of_drawn_scores(objective: str) -> None:
    """Steps are summed up from scores drawn with the means, variances and rates that the moments state."""
    random, n, dim, rate = np.random.default_rng(2), 3, 40, np.array([0.2, 0.4, 0.6])
    mean = random.normal(size=(n, dim)) / np.sqrt(dim) + 0.05
    m = Moments(rate, mean @ mean.T, np.array([2.0, 1.0, 3.0]), np.array([1.0, 2.0, 1.0]))
    weights = objectives(15.0)[objective]
    c, size = counts(rate, DESIGN.but(batches=2000), Played("uniform"))
    drawn = np.zeros((len(c), dim))
    for b, row in enumerate(c):
        for i, hits in enumerate(row):
            for right, k, v in ((True, hits, m.hit_noise[i]), (False, size[b, i] - hits, m.miss_noise[i])):
                at = mean[i] if right else -mean[i] * rate[i] / (1 - rate[i])
                score = at + random.normal(size=(k, dim)) * np.sqrt(v / dim)
                drawn[b] += weights(int(hits), int(size[b, i]))[0 if right else 1] * score.sum(0)
    estimate, target, centre = step(m, c, size, weights), mean.sum(0), drawn.mean(0)
    variance = drawn.var(0).sum()
    square = (drawn**2).sum(1).mean()
    assert estimate.cosine == pytest.approx(centre @ target / np.sqrt(square * target @ target), rel=0.05)
    assert estimate.snr == pytest.approx(centre @ centre / variance, rel=0.1)
    assert estimate.cosine == pytest.approx(1 / np.sqrt(1 + estimate.bias2 + estimate.variance))


def test_the_worth_of_a_batch_is_the_squared_cosine_of_its_best_weights() -> None:
    """Orthogonal prompts of equal norm, all groups with c hits: cosine² = c/(c + r)."""
    m = Moments(np.full(4, 0.5), np.eye(4), np.full(4, 6.0), np.full(4, 6.0))
    fixed = np.full((1, 4), 3)
    assert step(m, fixed, fixed * 2, objectives(6.0)["shrunken(6)"]).cosine ** 2 == pytest.approx(3 / 9)


def test_word_problems_differ_and_are_judged_by_the_last_answer() -> None:
    table = bank.problems(30, seed=0)
    assert len(dict(table)) == 30
    assert table == bank.problems(30, seed=0)
    assert bank.is_right(" He has 3 and 4, so 3 + 4 = 7. The answer is 7.", 7)
    assert not bank.is_right(" He has 3 and 4, so 3 + 4 = 7. The answer is 77.", 7)


def test_a_bank_of_ones_own_has_the_prompts_and_completions_of_hora_eval(tmp_path: Path) -> None:
    config, problems = load_config("tiny"), tmp_path / "problems.jsonl"
    problems.write_text("".join(f'{{"problem": "{i} + 1", "answer": "{i + 1}"}}\n' for i in range(3)))
    prompts = load_benchmark(config, find_benchmark(str(problems)), Console())
    file = tmp_path / "arithmetic.samples.jsonl"
    list(open_samples(file, {}, prompts))
    made = [Sample(i, k, 0, f"{k}", 1, "stop", (0, 0), {}, k < 9) for i in (0, 1) for k in range(18)]
    append(file, [asdict(s) for s in made])
    user_bank(tmp_path, file, config, str(problems))
    bank_, tokenizer = bank.read(tmp_path), load_tokenizer(config.model.path)
    assert [p.prompt for p in bank_] == [p.tokens.tolist() for p in prompts[:2]]
    assert bank_[1].completions[12] == [*tokenizer("12").input_ids, tokenizer.eos_token_id]
    assert all(p.right == [True] * 9 + [False] * 9 for p in bank_)
    design = load(tmp_path)
    assert (design.model, design.group_size, design.confirms) == (
        config.model.path,
        config.rollout.group_size,
        [],
    )
    assert len(bank.kept(bank_, design)) == 2
    (tmp_path / "other.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    with pytest.raises(ConfigError, match=r"other\.jsonl"):
        bank.of_samples(file, config, str(tmp_path / "other.jsonl"))


@pytest.mark.system
def test_a_small_study_runs_through_and_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=17, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    random = torch.Generator().manual_seed(0)
    made = {k: bank.sample(model, [1, 2, k], 60, most=2, ends=[0, 7], random=random) for k in range(3, 13)}
    drawn = [c for group in made.values() for c in group]
    assert all(not {0, 7} & {*c[:-1]} and (len(c) == 2 or c[-1] in {0, 7}) for c in drawn)
    assert {len(c) for c in drawn} == {1, 2}
    prompts = [bank.Sampled("", 0, [1, 2, k], group, [c[0] < 5 for c in group]) for k, group in made.items()]
    small = DESIGN.but(hits=9, misses=3, width=101, batches=50, min_hits=3)
    lines = "".join(json.dumps(asdict(prompt)) + "\n" for prompt in prompts)
    (tmp_path / "bank.jsonl").write_text(lines + '{"text": "cut')
    assert bank.read(tmp_path) == prompts
    scores.measure(tmp_path, small, model, prompts)
    files = {f: f.stat().st_mtime_ns for f in (tmp_path / "scores").iterdir()}
    assert len(files) == 10 * 12
    next(iter(files)).unlink()
    scores.measure(tmp_path, small, model, prompts)
    assert {f for f in files if f.stat().st_mtime_ns != files[f]} == {next(iter(files))}
    report.pack(tmp_path, small, tmp_path / "gradients.npz")
    assert report.page(tmp_path / "gradients.npz", small).count("| shrunken(") == 14
