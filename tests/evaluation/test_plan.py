"""`hora plan`: predictions that real allocations keep, intervals that hold, refusals that name what is
missing.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hora_rl.allocator import Session
from hora_rl.allocator.planning.forecast import plan as plan_of
from hora_rl.allocator.planning.forecast import reach, spared
from hora_rl.allocator.planning.outcome import GRID, Arm, fit_mixture, outcome, resampled_mixtures
from hora_rl.allocator.planning.table import Row
from hora_rl.allocator.posterior import Float
from hora_rl.allocator.session import simulate
from hora_rl.common.data.prompt_order import Counts, Mixture, Order
from hora_rl.common.errors import ConfigError
from hora_rl.deploy.cli import app
from hora_rl.evaluation.plan import options, plan, read_counts
from hora_rl.evaluation.report.tables import write_result
from tests.support.jsonl import write_lines
from tests.support.reported_runs import result

KINDS = [("uniform", "none", 1), ("hit_utility", "none", 1), ("hit_utility", "none", 3)]
KINDS += [("hit_utility", "hit", 4), ("hit_or_miss", "none", 4), ("hard_first", "none", 2)]
ALL = [Arm(*kind, 4, 16) for kind in (*KINDS, ("variance", "none", 2))]


def realised(arm: Arm, rates: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Shares of prompts with a hit and of mixed groups."""
    budget = len(rates) * (arm.group_size - arm.pre_rollouts)
    session = Session(len(rates), budget, arm.rule, rounds=arm.rounds, stop=arm.stop)
    c, n = simulate(session, rates, arm.pre_rollouts, rng)
    return float((c > 0).mean()), float(((c > 0) & (c < n)).mean())


def on_grid(rates: Float) -> Float:
    """Weights (K,) on GRID that keep every rate's mean: each is divided between its two neighbours."""
    above = np.clip(np.searchsorted(GRID, rates), 1, len(GRID) - 1)
    low, high = GRID[above - 1], GRID[above]
    part = (rates - low) / (high - low)
    weights = np.bincount(above, weights=part, minlength=len(GRID))
    weights += np.bincount(above - 1, weights=1 - part, minlength=len(GRID))
    return weights / len(rates)


def chosen(trials: int) -> list[Arm]:
    """Four arms at the largest of 16 and 32 that the trials reach."""
    g = min(32, trials)
    kinds = (*KINDS[:2], ("first_hit", "hit", 4), ("mixed", "mixed", 4))
    return [Arm(*kind, 4, g) for kind in kinds]


def study(
    draw: Callable[[np.random.Generator, int], Float], m: int, trials: int, repeats: int
) -> tuple[Float, float]:
    """Coverage (arms, 4) of hits, of the gain over uniform, of the equal uniform G and of signal; mean bias
    of hits, in points."""
    truth = on_grid(draw(np.random.default_rng(99), 400_000))
    rng, arms = np.random.default_rng(7), chosen(trials)
    true = [(float(truth @ o.hits), float(truth @ o.signal)) for o in (outcome(arm, truth) for arm in arms)]
    uniform = 1 - truth @ (1 - GRID[:, None]) ** np.arange(1, trials + 1)
    inside, bias = [], []
    for _ in range(repeats):
        counts = rng.binomial(trials, draw(rng, m))
        names = [arm.rule if arm.stop == "none" else f"{arm.rule}/{arm.stop}" for arm in arms]
        made = plan_of(counts, trials, [arms[0].group_size], [4], names, [1, 4]).rows
        rows = [row for row in made if (row.rule, row.rounds) in {(arm.rule, arm.rounds) for arm in arms}]
        inside.append([holds(row, *t, uniform) for row, t in zip(rows, true, strict=True)])
        bias.append([row.hits - hit for row, (hit, _) in zip(rows, true, strict=True)])
    return np.mean(inside, axis=0), 100 * float(np.mean(bias))


def holds(row: Row, hits: float, signal: float, uniform: Float) -> tuple[bool, ...]:
    """Whether each interval holds. `uniform` (trials,): true hits of uniform sampling at G = 1, 2, …"""
    same = int(np.searchsorted(uniform, hits - 1e-6)) + 1
    least, most = (g or len(uniform) + 1 for g in (row.uniform_group_size_low, row.uniform_group_size_high))
    return (
        row.hits_low <= hits <= row.hits_high,
        row.gain_low <= hits - uniform[row.group_size - 1] <= row.gain_high,
        least <= same <= most,
        row.signal_low <= signal <= row.signal_high,
    )


@pytest.mark.parametrize("arm", ALL, ids=lambda arm: f"{arm.rule}-{arm.stop}-{arm.rounds}")
def test_the_closed_form_is_what_sessions_of_a_large_batch_do(arm: Arm) -> None:
    rng = np.random.default_rng(1)
    rates = rng.beta(0.323, 0.143, 24_000)
    found, weights = outcome(arm, on_grid(rates)), on_grid(rates)
    for value, seen in zip((found.hits, found.signal), realised(arm, rates, rng), strict=True):
        assert weights @ value == pytest.approx(seen, abs=0.006)
    assert weights @ found.size == pytest.approx(arm.group_size, rel=0.01)


@pytest.mark.parametrize("solved", [0.8, 1.0])
def test_where_nearly_all_are_solved_the_rare_others_do_not_take_the_whole_batch(solved: float) -> None:
    rng = np.random.default_rng(2)
    rates = np.where(rng.random(20_000) < solved, 1.0, rng.beta(2.0, 1.0, 20_000))
    arm, weights = Arm("hit_utility", "none", 4, 4, 16), on_grid(rates)
    found, (hits, signal) = outcome(arm, weights), realised(arm, rates, rng)
    assert weights @ found.hits == pytest.approx(hits, abs=0.006)
    assert weights @ found.signal == pytest.approx(signal, abs=0.02)
    assert weights @ found.size == pytest.approx(arm.group_size, rel=0.1)


def test_uniform_sampling_is_the_binomial() -> None:
    found = outcome(Arm("uniform", "none", 1, 8, 32), fit_mixture(np.array([1, 30]), np.array([32, 32])))
    np.testing.assert_allclose(found.hits, 1 - (1 - GRID) ** 32, atol=1e-6)
    np.testing.assert_allclose(found.signal, 1 - (1 - GRID) ** 32 - GRID**32, atol=1e-6)
    np.testing.assert_allclose(found.size, 32)


def test_the_mixture_finds_prompts_that_are_never_solved() -> None:
    rng = np.random.default_rng(2)
    rates = np.where(rng.random(4000) < 0.3, 0.0, 0.5)
    counts, trials = rng.binomial(32, rates), np.full(4000, 32)
    weights = fit_mixture(counts, trials)
    assert weights[GRID < 0.001].sum() == pytest.approx((rates == 0).mean(), abs=0.005)
    assert weights[(GRID > 0.4) & (GRID < 0.6)].sum() == pytest.approx((rates > 0).mean(), abs=0.01)
    again = resampled_mixtures(counts, trials, 5)
    assert again.shape == (5, len(GRID))
    np.testing.assert_allclose(again.sum(1), 1)
    assert np.ptp(again[:, 0]) > 0


MIXES = {
    "common": (lambda rng, m: rng.beta(0.504, 1.322, m), 16),
    "paper": (lambda rng, m: rng.beta(0.323, 0.143, m), 64),
    "logarithmic": (lambda rng, m: np.exp(rng.uniform(np.log(1 / 300), 0, m)), 64),
    "rare": (lambda rng, m: rng.beta(0.25, 1.5, m), 64),
}


@pytest.mark.system
@pytest.mark.parametrize("mix", MIXES)
def test_intervals_hold_what_they_promise(mix: str) -> None:
    """For each of four arms, one round of HORA among them, and each of hits, gain, uniform G and signal."""
    draw, trials = MIXES[mix]
    coverage, bias = study(draw, 300, trials, 20)
    assert coverage.min() >= 0.8
    assert coverage.mean() >= 0.9
    assert abs(bias) < 2


@pytest.mark.system
def test_two_hundred_arms_of_ten_thousand_prompts_take_seconds() -> None:
    rng = np.random.default_rng(3)
    counts = rng.binomial(64, rng.beta(0.323, 0.143, 10_000))
    began = time.process_time()
    made = plan_of(counts, 64, (12, 16, 24, 32, 48, 64))
    assert len(made.rows) >= 170
    assert time.process_time() - began < 15  # about three; the benchmark machine may be slower


def lines(n: int = 320, trials: int = 32) -> list[dict[str, Any]]:
    rng = np.random.default_rng(4)
    successes = rng.binomial(trials, rng.beta(0.323, 0.143, n)).tolist()
    return [{"id": f"q{i}", "successes": c, "trials": trials} for i, c in enumerate(successes)]


@pytest.mark.system
def test_the_command_prints_rows_and_a_recommendation(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "counts.jsonl", lines())
    options = ["plan", str(source), "--group-size", "16,32", "--pre-rollouts", "4"]
    options += ["--rules", "uniform,hit_utility,mixed/mixed"]
    done = CliRunner().invoke(app, [*options, "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert all(row["hits_low"] <= row["hits"] <= row["hits_high"] for row in printed["rows"])
    assert len(printed["rows"]) == 2 * (1 + 2 + 2)
    assert printed["recommended"] in printed["rows"]
    rows = {(r["rule"], r["rounds"], r["group_size"]): r for r in printed["rows"]}
    hora, uniform = rows["hit_utility", 1, 16], rows["uniform", 1, 16]
    assert hora["hits"] > uniform["hits"]
    assert uniform["uniform_group_size"] == 16
    assert "recommended: allocation.rule=" in CliRunner().invoke(app, options).stdout


def test_a_runs_newest_groups_and_an_evaluation_can_be_planned_from(tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    records = [{"prompt_index": i % 150, "hits": (i * 7) % 17, "size": 16} for i in range(300)]
    write_lines(run / "groups.jsonl", records)
    counts = read_counts(run)
    assert len(counts.trials) == 150
    assert counts.successes[0] == records[150]["hits"]
    assert any("newest group" in note for note in counts.notes)
    path = write_result(tmp_path, result("math500", [i % 17 for i in range(400)], 0))
    for source in (path, tmp_path):
        found = read_counts(source)
        assert reach(found.trials) == 256
        assert any("held-out problems are not training prompts" in note for note in found.notes)


@pytest.mark.parametrize(
    ("records", "texts", "message"),
    [
        (lines(20), {}, "20 prompts"),
        ([{**lines()[0], "successes": 40}], {}, r"counts.jsonl:1: .*successes \(40\)"),
        ([{"id": "a", "successes": 1}], {}, "counts.jsonl:1: trials"),
        ([*lines(), lines()[3]], {}, "counts.jsonl:321: id 'q3' .*line 4"),
        (lines(), {"group_size": "64"}, "group size 64 .* 32 trials"),
        (lines(), {"group_size": "4", "pre_rollouts": "8"}, "no arm to plan"),
        (lines(), {"group_size": "x"}, r"--group-size \(x\)"),
        (lines(), {"rules": "variance", "pre_rollouts": "1"}, "variance.* 2 .*1"),
        (lines(trials=6), {}, "6 trials"),
        (lines(), {"gradients": "9.5"}, r"--gradients \(9.5\)"),
        (lines(), {"gradients": "9.5,1,64"}, r"gradients = \(9.5, 1, 64\)"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    records: list[dict[str, Any]], texts: dict[str, str], message: str, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "counts.jsonl", records)
    defaults = dict.fromkeys(("group_size", "pre_rollouts", "rules")) | {"rounds": "1"}
    with pytest.raises(ConfigError, match=message):
        plan(source, options(**{**defaults, **texts}), json_=True)


def test_counts_are_a_file_of_any_name_but_a_configurations(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "counts", lines(20))
    done = CliRunner().invoke(app, ["plan", str(source)])
    assert "20 prompts" in str(done.exception)


def test_a_plan_from_arrays_says_first_what_uniform_sampling_would_need() -> None:
    rows = lines(400, trials=64)
    counts = [r["successes"] for r in rows]
    found = plan_of(counts, 64, [32], [8], ["uniform", "hit_utility", "first_hit/hit"], [1])
    uniform, hora, stop = found.rows
    assert (uniform.uniform_group_size_low, uniform.uniform_group_size_high) == (32, 32)
    assert 32 < (hora.uniform_group_size or 65) <= (stop.uniform_group_size or 65)
    assert str(found).splitlines()[1].startswith("Most hits: first_hit, stop at hit at G = 32")
    [note] = plan_of(counts[:150], 64, [16], [4], ["uniform"], [1]).notes
    assert note.startswith("150 prompts are few")


def test_a_gain_that_no_run_can_show_or_that_prompts_share_is_no_advice() -> None:
    rng = np.random.default_rng(3)
    counts = rng.binomial(64, rng.beta(0.3, 0.9, 400))
    arms = [16], [4], ["uniform", "first_hit/hit"], [4]
    assert plan_of(counts, 64, *arms).worthwhile
    assert not plan_of(np.full(400, 60), 64, *arms).worthwhile, "all prompts have a hit already"
    alone = plan_of(counts, 64, *arms, gradients=(9.5, 0.0, 64))
    assert (alone.leverage, alone.worthwhile) == (1.0, True)
    shared = plan_of(counts, 64, *arms, gradients=(9.5, 0.75, 64))
    # A by the mean of c/(c/4 + 9.5) over binomial draws at the counted rates.
    c = rng.binomial(16, np.repeat(counts / 64, 200))
    worth = 64 * np.mean(c / (0.25 * c + 9.5))
    assert shared.leverage == pytest.approx(1 / (1 + 0.75 * worth), rel=0.05)
    assert not shared.worthwhile
    assert "stay uniform" in str(shared).splitlines()[0]


def test_what_rests_would_spare_is_what_the_order_of_a_run_spares() -> None:
    kinds, epochs, chance = np.array([0.3, 0.9, 0.97, 1.0]), 10, np.random.default_rng(0)
    rates = np.repeat(kinds, 500)
    order, visits = Order(Mixture((len(rates),)), 1, 0, rest=("solved",)), np.zeros(len(rates))
    batch = 0
    while (drawn := order.rows(batch)[0])[0] < epochs:
        row = drawn[1]
        visits[row] += 1
        hits = {row: int(chance.binomial(4, rates[row]))}
        order.observe(Counts(4, hits, dict(hits)))
        batch += 1
    rested = 1 - visits.reshape(len(kinds), -1).mean(1) / epochs
    expected = spared(kinds, 4, epochs)
    assert expected[-1] == pytest.approx(0.7), "epochs 0, 2 and 5"
    assert rested == pytest.approx(expected, abs=0.025)


def test_the_plan_says_what_rests_would_spare_on_these_counts() -> None:
    c = np.where(np.arange(300) % 2, 64, 0)  # half of the prompts always, half never right
    made = plan_of(c, 64, [16], [4], ["uniform", "hit_utility"], [1])
    assert [r.epochs for r in made.rests] == [3, 10]
    assert [r.share for r in made.rests] == pytest.approx([0.5 / 3, 0.35], abs=0.002)
    assert all(r.low < r.share < r.high for r in made.rests)
    assert "spares, in % while rates stay: 16.7 (" in str(made)


def test_counts_are_read_with_a_byte_order_mark_and_refused_in_another_encoding(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "counts.jsonl", lines())
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    assert len(read_counts(source).trials) == len(lines())
    source.write_bytes(source.read_bytes() + '{"id": "é"}'.encode("latin-1"))
    with pytest.raises(ConfigError, match=f"counts.jsonl:{len(lines()) + 1}: "):
        read_counts(source)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"successes": [1, 70] * 50}, r"successes\[1\] = 70"),
        ({"trials": [64] * 99 + [0], "successes": [0] * 100}, r"trials\[99\] = 0"),
        ({"group_sizes": [16, 0]}, r"group_sizes\[1\]"),
        ({"rounds": []}, "rounds"),
        ({"rules": ["uniform", "mixed/never"]}, r"rules\[1\] = 'mixed/never'"),
        ({"rules": ["nope"]}, r"rules\[0\] = 'nope'"),
    ],
)
def test_arrays_that_cannot_be_planned_name_argument_and_index(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_of(**{"successes": [3] * 100, "trials": 64, **changed})
