"""Intervals that hold what they promise, differences on pairs, and budgets counted from records."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import Run, RunFolderError, load_run
from research.report import study_report
from research.report.study_report import write_study_report
from research.report.study_statistics import (
    estimate,
    half_widths,
    mean_over_seeds,
    paired,
    per_problem,
    unmatched,
)

KS = [1, 4, 16]


def result(correct: list[int], step: int = 2, problems: list[int] | None = None, texts: str = "") -> Result:
    places, model = problems or list(range(len(correct))), "run" if step else "m"
    return Result("arithmetic", "arithmetic", model, step, 1.0, 0, 16, KS, places, correct, 0, 0, 1, texts)


def cell(folder: Path, correct: list[int], sizes: list[int], rule: str = "uniform") -> Path:
    """A finished cell of two batches of two groups, Γ·G = 2·4."""
    (folder / "evaluation").mkdir(parents=True)
    config = {
        "rollout": {"prompts_per_batch": 2, "group_size": 4},
        "allocation": {"rule": rule},
        "model": {"path": "m"},
        "learner": {"steps": 2},
        "evaluation": {"path": "arithmetic"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with (folder / "groups.jsonl").open("w") as file:
        for i, size in enumerate(sizes):
            group = {"step": i // 2, "batch": i // 2, "rule": rule, "trials": 2, "successes": 1}
            group["extra"] = size - 2
            file.write(json.dumps({**group, "size": size, "hits": i % 2, "tokens": 10}) + "\n")
    names = ("success", "groups/hit", "groups/zero_signal", "entropy", "length/mean", "time/step")
    steps = [json.dumps({"step": s, **dict.fromkeys(names, 0.5)}) for s in range(2)]
    (folder / "steps.jsonl").write_text("\n".join(steps) + "\n")
    for step in (0, 2):
        values = {name: getattr(result(correct, step), name) for name in Result.__slots__}
        (folder / "evaluation" / f"arithmetic-step{step}.json").write_text(json.dumps(values))
    return folder  # fmt: skip


def cell_by_tokens(folder: Path, tokens: int) -> Path:
    """A finished cell with `allocation.budget: tokens`, of four groups of `tokens` each."""
    cell(folder, [1, 2], [3, 5, 4, 4 + tokens % 2])
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["allocation"] |= {"budget": "tokens", "rule": "hit_utility", "rounds": 4, "stop": "hit"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    groups = (folder / "groups.jsonl").read_text()
    (folder / "groups.jsonl").write_text(groups.replace('"tokens": 10}', f'"tokens": {tokens}}}'))
    return folder


def test_the_interval_over_seeds_is_students() -> None:
    found = mean_over_seeds([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.high - 2.0 == pytest.approx(4.30265 / np.sqrt(3), rel=1e-4)  # t(0.975, 2) · s / √n
    assert np.isnan(mean_over_seeds([1.0]).low)


# Standard deviations of seeds, problems and what is peculiar to a seed on a problem.
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    "spreads", [(0.05, 0.0, 0.02), (0.05, 0.05, 0.05), (0.04, 0.3, 0.1), (0.0, 0.3, 0.0), (0.0, 0.0, 0.1)]
)
def test_ninety_five_percent_intervals_hold_the_truth_about_that_often(
    seeds: int, spreads: tuple[float, float, float]
) -> None:
    random, trials = np.random.default_rng(3), 2000
    a, b, both = spreads
    values = random.normal(0, a, (trials, seeds, 1)) + random.normal(0, b, (trials, 1, 60))
    values = np.moveaxis(values + random.normal(0, both, (trials, seeds, 60)), 0, 2)
    held = np.abs(values.mean(axis=(0, 1))) <= half_widths(values)  # the truth is 0
    assert held.mean() >= 0.93


def test_what_is_peculiar_to_a_seed_on_a_problem_counts_once() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (5, 60, 2000))
    of_seeds = stats.t.ppf(0.975, 4) * stats.sem(noise.mean(axis=1), axis=0)
    assert half_widths(noise).mean() < 1.1 * of_seeds.mean()


def test_an_interval_of_pass_at_k_stays_between_none_and_all() -> None:
    values = np.array([[[0.9], [1.0]], [[0.2], [0.4]]])
    [found] = estimate(values, [1])
    assert (found.low, found.high) == (0.0, 1.0)
    [difference] = paired(values, 1 - values, [1])
    assert (difference.low, difference.high) == (-1.0, 1.0)


def test_pairing_removes_what_problems_share() -> None:
    random = np.random.default_rng(0)
    hard = random.uniform(0, 0.9, (1, 40, 1)) + random.normal(0, 0.01, (5, 40, 1))
    better = hard + 0.05
    [difference] = paired(better, hard, [1])
    assert (difference.low, difference.value, difference.high) == pytest.approx((0.05, 0.05, 0.05))
    [alone] = estimate(better, [1])
    assert alone.high - alone.low > 0.1
    with pytest.raises(ValueError, match="cannot be paired"):
        paired(better[:4], hard, [1])


def test_seeds_evaluated_on_different_problems_are_refused() -> None:
    assert per_problem([result([0, 8, 16]), result([1, 2, 3])], KS).shape == (2, 3, 3)
    with pytest.raises(RunFolderError, match="different problems"):
        per_problem([result([0, 8]), result([0, 8], problems=[4, 5])], KS)
    with pytest.raises(RunFolderError, match="different problems"):  # of equal number
        per_problem([result([0, 8]), result([0, 8], texts="one"), result([0, 8], texts="other")], KS)


def test_a_batch_without_its_budget_is_found_in_the_records(tmp_path: Path) -> None:
    good = load_run(cell(tmp_path / "good", [1, 2], [3, 5, 4, 4]))
    short = load_run(cell(tmp_path / "short", [1, 2], [3, 5, 4, 3]))
    also = load_run(cell(tmp_path / "also", [1, 2], [2, 6, 6, 2]))
    assert unmatched({"good": good, "also": also}) == []
    assert unmatched({"good": good, "short": short, "also": also}) == [
        "short: batch 1 holds 7 rollouts, not Γ·G = 8",
        "short: 15 rollouts in 2 batches, the others 16 in 2",
    ]


def test_arms_with_a_budget_in_tokens_are_compared_by_their_tokens(tmp_path: Path) -> None:
    def of(name: str, tokens: int) -> Run:
        return load_run(cell_by_tokens(tmp_path / name, tokens))

    runs = {"one": of("one", 100), "other": of("other", 103), "rest": of("rest", 97)}
    assert unmatched(runs) == [], "within a few per cent, and whatever their rollouts"
    (found,) = unmatched(runs | {"much": of("much", 120)})
    assert found.startswith("much: 480 completion tokens")
    assert runs["one"].method == "GRPO + HORA (R=4, stop hit, tokens)"


def test_a_report_says_of_equal_compute_only_what_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(name: str, cells: dict[int, Path]) -> list[str]:
        page, problems = write_study_report(tmp_path / name, "A study", {"grpo": cells}, "grpo")
        assert problems == []
        return [page.read_text(), (page.parent / "report.md").read_text()]

    monkeypatch.setattr(study_report, "_figures", lambda *_: {})
    rollouts = {s: cell(tmp_path / f"rollouts-seed{s}", [1, 2], [3, 5, 4, 4]) for s in (0, 1)}
    tokens = {s: cell_by_tokens(tmp_path / f"tokens-seed{s}", 100 + 3 * s) for s in (0, 1)}
    for text in said("by-rollouts", rollouts):
        assert "Every batch of every cell holds its Γ·G rollouts, and all cells the same total" in text
    for text in said("by-tokens", tokens):
        assert "The completion tokens of every cell are within 5% of the median" in text
        assert "Γ·G rollouts" not in text


@pytest.mark.system
def test_the_report_has_every_arm_its_difference_and_what_is_missing(tmp_path: Path) -> None:
    folders = {
        "grpo": {s: cell(tmp_path / f"grpo-seed{s}", [2, 4, 0], [4, 4, 4, 4]) for s in (0, 1)},
        "hora": {s: cell(tmp_path / f"hora-seed{s}", [4, 8, 0], [3, 5, 2, 6], "hit_utility") for s in (0, 1)},
    }
    folders["hora"][2] = tmp_path / "hora-seed2"
    path, problems = write_study_report(tmp_path / "report", "A study", folders, "grpo")
    text = (tmp_path / "report" / "report.md").read_text()
    assert problems == []
    assert "Missing cells: hora-seed2" in text
    assert "| before training |  | 12.5" in text
    assert "| hora | 2 | 25.0" in text
    assert "| hora | +12.5 (" in text
    assert path.read_text().count("<svg") == 5
    assert {p.name for p in path.parent.glob("*.png")} == {
        "pass_at_k.png", "difference.png", "training.png", "allocation_grpo.png", "allocation_hora.png"
    }  # fmt: skip


def test_arms_evaluated_on_different_problems_are_not_compared(tmp_path: Path) -> None:
    folders = {arm: {0: cell(tmp_path / arm, [2, 4, 0], [4, 4, 4, 4])} for arm in ("grpo", "hora")}
    for arm, runs in folders.items():
        path = runs[0] / "evaluation" / "arithmetic-step2.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "problem_set": arm}))
    with pytest.raises(RunFolderError, match="different problems, which cannot be averaged or compared"):
        write_study_report(tmp_path / "report", "A study", folders, "grpo")


@pytest.mark.system
def test_a_cell_that_cannot_be_read_costs_itself_alone(tmp_path: Path) -> None:
    cells = {s: cell(tmp_path / f"grpo-seed{s}", [2, 4, 0], [4, 4, 4, 4]) for s in range(8)}
    (cells[0] / "evaluation" / "arithmetic-step2.json").write_text("{")
    (cells[1] / "steps.jsonl").unlink()
    (cells[2] / "steps.jsonl").write_text('{"step": 0, "time/step": 1.0}\n' * 2)
    (cells[3] / "evaluation" / "arithmetic-step2.json").unlink()
    (cells[4] / "steps.jsonl").write_text((cells[4] / "steps.jsonl").read_text().splitlines()[0] + "\n")
    (cells[5] / "groups.jsonl").write_bytes(b"\xff\n")
    during = cells[6] / "evaluation" / "arithmetic-step1.json"
    last = cells[6] / "evaluation" / "arithmetic-step2.json"
    during.write_text(json.dumps({**json.loads(last.read_text()), "step": 1}))
    last.unlink()
    cells[8] = tmp_path / "nothing"
    write_study_report(tmp_path / "report", "A study", {"grpo": cells}, "grpo")
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| grpo | 1 |" in text
    for words in (
        "grpo-seed0 (", "arithmetic-step2.json: not a result",
        "grpo-seed1 (", "steps.jsonl: holds no time/step, success",
        "grpo-seed2 (", "steps.jsonl: holds no success, groups/hit",
        "grpo-seed3 (finished but not evaluated)",
        "grpo-seed4 (1 of 2 steps)",
        "grpo-seed5 (", "'utf-8' codec can't decode",
        "grpo-seed6 (finished but not evaluated)",
        "grpo-seed8 (not begun)",
    ):  # fmt: skip
        assert words in text


def test_a_study_without_a_finished_cell_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no cell of the study has finished"):
        write_study_report(tmp_path / "report", "A study", {"grpo": {0: tmp_path / "nothing"}}, "grpo")
