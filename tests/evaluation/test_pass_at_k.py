"""Pass@K by its formula, and what the report says of prompts with a hit: expected and realised shares of runs
whose rates are drawn from the prior itself."""

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from hora_rl.allocator import Session
from hora_rl.evaluation.pass_at_k import estimates, pass_at_k
from hora_rl.evaluation.report.runs_report import write_report
from hora_rl.evaluation.report.summaries import HitRow, hits_by_difficulty, promise
from hora_rl.evaluation.run_folders import Run


def exact(n: int, c: int, k: int) -> float:
    return float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))


@given(st.integers(1, 2000), st.data())
def test_it_is_the_formula_in_exact_arithmetic(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k([c], n, k)[0] == pytest.approx(exact(n, c, k), rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("n", "c", "k"),
    [(1024, 1, 1024), (1024, 1, 512), (1024, 1023, 1), (10**6, 3, 10**5), (10**6, 5 * 10**5, 7)],
)
def test_it_is_stable_at_and_far_beyond_the_papers_sample_sizes(n: int, c: int, k: int) -> None:
    assert pass_at_k([c], n, k)[0] == pytest.approx(exact(n, c, k), rel=1e-11)


@pytest.mark.parametrize(
    ("counts", "message"),
    [([], "at least one"), ([3, 9], "problem 1 has 9"), ([-1], "problem 0"), ([0.5], "integers")],
)
def test_impossible_counts_and_k_are_refused(counts: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pass_at_k(counts, 8, 1)
    for k in (0, -1, 9):
        with pytest.raises(ValueError, match=f"Pass@{k} .*8"):
            pass_at_k([1], 8, k)


def test_the_interval_is_repeatable_holds_the_value_and_narrows_with_problems() -> None:
    rng = np.random.default_rng(2)
    few, many = rng.integers(0, 65, 20), rng.integers(0, 65, 2000)
    first = estimates(few, 64, [1, 8, 64], seed=3)
    assert first == estimates(few, 64, [1, 8, 64], seed=3)
    assert all(e.low <= e.value <= e.high for e in first)
    [narrow] = estimates(many, 64, [1])
    assert narrow.high - narrow.low < (first[0].high - first[0].low) / 5


@pytest.mark.system
def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    truth, covered = 1 - np.mean((1 - rng.beta(1, 3, 200_000)) ** 8), 0
    for seed in range(100):
        counts = rng.binomial(32, rng.beta(1, 3, 100))
        estimate = estimates(counts, 32, [8], seed=seed)[0]
        covered += estimate.low <= truth <= estimate.high
    assert 0.87 <= covered / 100 <= 0.99


G0, G, N = 4, 16, 12


def drawn_run(rounds: int, stop: str, shards: int, truth: tuple[float, float] = (1.0, 1.0)) -> Run:
    """Groups of a run with the prior Beta(1, 1) whose rates are Beta(*truth)."""
    rng = np.random.default_rng(0)
    columns: dict[str, list[int]] = {name: [] for name in ("successes", "trials", "size", "hits")}
    of_rounds = []
    for _ in range(shards):
        p = rng.beta(*truth, N)
        session, mine = Session(N, N * (G - G0), rounds=rounds, stop=stop), [[] for _ in range(N)]
        c = rng.binomial(G0, p)
        session.tell(c, G0)
        while not session.done:
            extra = session.ask()
            hits = rng.binomial(extra, p)
            session.tell(hits, extra)
            for i in range(N):
                mine[i].append((int(extra[i]), int(hits[i])))
        columns["successes"] += c.tolist()
        columns["trials"] += [G0] * N
        columns["size"] += session.trials.tolist()
        columns["hits"] += session.successes.tolist()
        of_rounds += [tuple(m) for m in mine]
    n = len(of_rounds)
    groups = {name: np.array(values, dtype=float) for name, values in columns.items()}
    prior = {"rules": np.array(["hit_utility"] * n), "priors": ((1.0, 1.0),) * n}
    return Run(name="r", config={}, groups=groups, rounds=tuple(of_rounds), steps={}, results=(), **prior)


def test_a_round_is_promised_the_beta_binomial_and_one_after_a_hit_nothing_more() -> None:
    assert promise(1.0, 5.0, [(20, 0)]) == pytest.approx(1 - betabinom.pmf(0, 20, 1.0, 5.0))
    once = promise(1.0, 5.0, [(4, 1)])
    assert promise(1.0, 5.0, [(4, 1), (9, 0)]) == once
    assert promise(1.0, 5.0, [(4, 0), (9, 0)]) > once


@pytest.mark.parametrize(("rounds", "stop"), [(1, "none"), (4, "hit"), (3, "mixed")])
def test_expected_and_realised_agree_where_the_prior_is_true(rounds: int, stop: str) -> None:
    rows = hits_by_difficulty(drawn_run(rounds, stop, 400))
    assert [r.title for r in rows] == ["0", "1", "2-3", "4", "all"]
    for row in rows:
        error = 4 * np.sqrt(0.25 / row.groups)
        assert abs(row.expected - row.realised) < error, row
        assert abs(row.phase_b_expected - row.phase_b_realised) < error, row
    assert rows[-1].groups == 400 * N == sum(r.groups for r in rows[:-1])
    assert rows[0].size > rows[-2].size


def test_a_wrong_prior_shows() -> None:
    run = drawn_run(1, "none", 200, truth=(0.05, 1.0))
    none: HitRow = hits_by_difficulty(run)[0]
    assert none.expected > none.realised + 0.2
    assert hits_by_difficulty(replace(run, rules=np.array([]))) == []


def test_the_report_shows_the_table(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    line = {"step": 0, "batch": 0, "shard": 0, "rule": "first_hit", "prior_alpha": 1.0, "prior_beta": 1.0}
    line |= {"trials": 4, "successes": 0, "extra": 12, "size": 16, "hits": 1, "tokens": 99}
    (folder / "groups.jsonl").write_text(json.dumps({**line, "rounds": [6, 6], "round_hits": [0, 1]}) + "\n")
    text = write_report([folder], tmp_path / "out").read_text()
    assert "Prompts with a hit: run" in text
    expected = promise(1.0, 5.0, [(6, 0), (6, 1)])
    assert f"<td>{100 * expected:.1f}%</td><td>100.0%</td>" in text
