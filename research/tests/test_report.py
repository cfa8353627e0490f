"""The report of a study, from exact or sampled curves: pairs of arms, seeds, equal compute, missing cells."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console

from hora_rl.common.load import load
from hora_rl.evaluation.results import Result
from hora_rl.evaluation.run_folders import RunFolderError, load_run
from research.report.curves import Curve, Curves, curve_of, decide
from research.report.curves_report import report_curves
from research.study.cells import Cell, Design, Study
from research.study.command import report
from research.study.curve_sources import SampledCurves

ARMS: dict[str, dict] = {"base": {}, "more": {}, "same": {}}
STEPS = (0, 3, 6, 9)
CORRECT = {"grpo": ([1, 3, 0, 5], [2, 4, 0, 6]), "hora": ([1, 3, 0, 5], [6, 8, 1, 9])}


def study_of(**design: object) -> Study:
    return Study(name="s", title="A study", arms=ARMS, seeds=range(5), design=Design(**design))


def exact_curve(seed: int, gain: float) -> Curve:
    """Its Pass@16 on held-out prompts is `gain` above one that all arms of this seed share."""
    noise = np.random.default_rng(seed).normal(0, 0.05)
    fixed = {"pass@256": 0.9, "ways": 1.0}
    points = [
        {"step": s, "pass@1": 0.2 + 0.02 * s, "pass@16": 0.5 + 0.03 * s + noise + gain, **fixed}
        for s in STEPS
    ]
    training = [{"step": s, "hits": 0.7, "signal": 0.5, "tokens": 900.0, "entropy": 1.0} for s in range(9)]
    return curve_of({"curves": {"trained": points, "held-out": points}, "steps": training})


@pytest.fixture
def curves() -> dict[str, dict[int, Curve]]:
    gains = {arm: [0.04 + 0.001 * s if arm == "more" else 0.0 for s in range(5)] for arm in ARMS}
    return {arm: {s: exact_curve(s, gain) for s, gain in enumerate(of)} for arm, of in gains.items()}


def test_noise_that_all_arms_of_a_seed_share_is_no_part_of_a_difference(curves: Curves) -> None:
    more, same = decide(curves, study_of().rules)
    assert more.primary.value == pytest.approx(0.042)
    assert more.primary.low > 0.04
    assert more.corrected == pytest.approx(2 * more.primary.p)
    assert same.primary.value == pytest.approx(0.0)
    assert same.corrected == 1.0
    assert more.matched is not None
    assert more.matched.value == pytest.approx(0.042)


def test_two_ends_are_tested_together_and_the_way_there_is_shown(curves: Curves, tmp_path: Path) -> None:
    """The gain in Pass@16 has p < 1e-6; Pass@1 is equal in every cell."""
    [more] = decide(curves, study_of(comparisons=[("more", "base")]).rules)
    assert more.kept.value == pytest.approx(0.02)
    assert more.kept.p == 0.0
    assert more.primary.deviation == pytest.approx(np.std(0.001 * np.arange(5), ddof=1))
    text = report_curves(tmp_path, study_of(comparisons=[("base", "more")]), curves).read_text()
    assert "| base | more | -4.2 ± 0.2 | 1 | 0.3 | +0.0 ± 0.0 | 0 | 0.0 |" in text
    steps = "+18.0 ± 0.0 | +27.0 ± 0.0 | +0.0 ± 0.0 | +6.0 ± 0.0 | +9.0 ± 0.0 | +0.0 ± 0.0 |"
    assert f"| more | {steps}" in text  # from steps 0 and 6 to 9


def test_the_page_begins_with_its_design_and_names_what_is_missing(
    curves: dict[str, dict[int, Curve]], tmp_path: Path
) -> None:
    del curves["more"][4]
    text = report_curves(tmp_path, study_of(hypotheses=["more is better"]), curves).read_text()
    assert text.index("Design") < text.index("more is better") < text.index("Comparisons")
    assert "Seeds missing: more (4 of 5)" in text
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_an_exploratory_comparison_is_apart_and_uncorrected(curves: Curves, tmp_path: Path) -> None:
    study = study_of(comparisons=[("same", "base")], exploratory=[("more", "base")])
    text = report_curves(tmp_path, study, curves).read_text()
    assert text.index("Exploratory comparisons") < text.index("| more | base | 5 | +4.2")
    assert "Holm over 1 comparisons" in text
    assert "| more | base | 5 | +4.2 ± 0.2 | — |" in text


def test_curves_that_cannot_be_compared_are_one_line(
    curves: dict[str, dict[int, Curve]], tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match=r"design\.watched \(transfer\)"):
        report_curves(tmp_path, study_of(watched="transfer"), curves)
    curves["base"].clear()
    with pytest.raises(RunFolderError, match="in common"):
        report_curves(tmp_path, study_of(), curves)
    with pytest.raises(KeyError):
        curve_of({})


def cell(out: Path, arm: str, seed: int, sizes: list[int] | None = None, **more: object) -> Cell:
    """A finished cell of two batches of two groups, Γ·G = 2·4, evaluated on four problems."""
    values = {
        "run.name": f"{arm}-seed{seed}",
        "run.folder": str(out),
        "rollout.prompts_per_batch": 2,
        "rollout.group_size": 4,
        "rollout.pre_rollouts": 2,
        "rollout.shards": 1,
        "learner.steps": 2,
        "evaluation.samples": 16,
        "evaluation.k": [1, 4, 16],
        **more,
    }
    config = load("tiny", [f"{key}={json.dumps(value)}" for key, value in values.items()])
    folder = config.run.path
    (folder / "evaluation").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    group = {"rule": "uniform", "trials": 2, "successes": 1, "extra": 2, "hits": 1, "tokens": 10}
    groups = [{"step": i // 2, "batch": i // 2, **group, "size": n} for i, n in enumerate(sizes or [4] * 4)]
    names = ("groups/hit", "groups/zero_signal", "entropy", "time/step", "tokens", "rollouts", "grad_norm")
    write_lines(folder / "groups.jsonl", groups)
    write_lines(folder / "steps.jsonl", [{"step": s, **dict.fromkeys(names, 0.5)} for s in range(2)])
    for step, correct in zip((0, 2), CORRECT[arm], strict=True):
        write_result(folder, step, [c + seed % 2 for c in correct])
    return Cell(arm, seed, config)


def write_lines(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_result(folder: Path, step: int, correct: list[int], problem_set: str = "") -> None:
    problems, ks = list(range(len(correct))), [1, 4, 16]
    result = Result("arithmetic", "a", "m", step, 1.0, 0, 16, ks, problems, correct, 0, 0, 1, problem_set)
    values = {name: getattr(result, name) for name in Result.__slots__}
    (folder / "evaluation" / f"arithmetic-step{step}.json").write_text(json.dumps(values))


def sampled_report(tmp_path: Path, cells: list[Cell]) -> tuple[str, list[str]]:
    study = Study(name="s", title="A study", arms={a: {} for a in CORRECT}, seeds=(0, 1, 2))
    path, problems = report(study, cells, SampledCurves("held-out"), tmp_path / "report", Console(quiet=True))
    return path.read_text(), problems


def test_sampled_pass_at_k_has_the_same_report_with_intervals_over_seeds_and_problems(tmp_path: Path) -> None:
    cells = [cell(tmp_path, arm, seed) for seed in (0, 1) for arm in CORRECT]
    text, problems = sampled_report(tmp_path, cells)
    assert problems == []
    assert "Not compute-matched" not in text
    assert "Primary: Pass@16 at the end on the set `held-out`" in text
    assert "| hora | grpo | 2 | +" in text
    assert "| grpo | 2 | 17.2 |" in text  # 9 and 13 of 64 completions
    assert "Seeds missing: grpo (2 of 3), hora (2 of 3)" in text
    run = SampledCurves("held-out")(cells[0].config, load_run(cells[0].config.run.path))
    assert run.values["held-out"]["pass@1"].shape == (2, 4)


def test_a_cell_that_cannot_be_read_costs_itself(tmp_path: Path) -> None:
    cells = [cell(tmp_path, arm, seed) for seed in (0, 1, 2) for arm in CORRECT]
    faults = {
        "grpo-seed1": lambda f: (f / "evaluation" / "arithmetic-step2.json").write_text("{"),
        "grpo-seed2": lambda f: (f / "evaluation" / "arithmetic-step2.json").unlink(),
        "hora-seed1": lambda f: (f / "groups.jsonl").write_bytes(b"\xff\n"),
        "hora-seed2": lambda f: write_result(f, 2, [1, 2, 3, 4, 5]),
    }
    for each in cells:
        faults.get(each.name, lambda _: None)(each.config.run.path)
    (cells[0].config.run.path / "steps.jsonl").write_text('{"step": 0}\n')
    with pytest.raises(RunFolderError, match=r"grpo-seed0 \(KeyError"):
        sampled_report(tmp_path, cells)
    text, _ = sampled_report(tmp_path, [cell(tmp_path, "grpo", 3), *cells[1:], cell(tmp_path, "hora", 3)])
    assert "| hora | grpo | 1 | +" in text
    for words in (
        "grpo-seed1 (", "arithmetic-step2.json: not a result",
        "grpo-seed2 (not evaluated at step 2)",
        "hora-seed1 (", "'utf-8' codec can't decode",
        "hora-seed2 (", "evaluated on different problems, which cannot be averaged or compared",
    ):  # fmt: skip
        assert words in text


def test_a_batch_without_its_budget_is_found_in_the_records(tmp_path: Path) -> None:
    cells = [
        cell(tmp_path, "grpo", 0),
        cell(tmp_path, "hora", 0, [3, 5, 4, 3]),
        cell(tmp_path, "hora", 1, [2, 6, 6, 2]),
    ]
    text, problems = sampled_report(tmp_path, cells)
    assert problems == [
        "hora-seed0: batch 1 holds 7 rollouts, not Γ·G = 8",
        "hora-seed0: 15 rollouts in 2 batches, the others 16 in 2",
    ]
    assert "**Not compute-matched:** hora-seed0: batch 1" in text
