"""Reports of runs, also of those that are unfinished, renamed, damaged or not comparable, and their curves
over each other."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hora_rl.common.config import ObjectiveConfig
from hora_rl.common.errors import ConfigError
from hora_rl.deploy.launch.summary import phase_b_share
from hora_rl.evaluation.pass_at_k import pass_at_k
from hora_rl.evaluation.report.figures import moving_average
from hora_rl.evaluation.report.runs_report import summarise, write_report
from hora_rl.evaluation.report.tables import latex, table_1, write_result
from hora_rl.evaluation.results import read_result
from hora_rl.evaluation.run_folders import Run, RunFolderError, load_run
from tests.support.jsonl import lines, write_lines
from tests.support.reported_runs import G0, MODEL, G, make_run, result, rows, small_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    kinds = (("grpo-0", "uniform"), ("hora-0", "hit_utility"), ("hora-1", "hit_utility"))
    return [make_run(root / name, rule, seed) for seed, (name, rule) in enumerate(kinds)]


@pytest.mark.system
def test_a_report_is_one_page_with_its_figures_inside_and_beside_it(runs: list[Path], tmp_path: Path) -> None:
    page = write_report(runs, tmp_path / "report")
    html = page.read_text()
    titles = re.findall(r'<figure role="img" aria-label="([^"]+)">\s*<svg', html)
    assert len(titles) == len(set(titles)) == 4
    assert len(list(page.parent.glob("*.png"))) == len(list(page.parent.glob("*.svg"))) == len(titles)
    assert not re.search(r'(src|href)="(?![#])', html)
    differing = r"<td>allocation.rule</td><td>uniform</td><td>hit_utility</td><td>hit_utility</td>"
    assert re.search(differing, html)


def test_a_model_is_known_by_its_weights_and_not_by_its_path(tmp_path: Path) -> None:
    def run(name: str, model: str, weights: str) -> Run:
        first, last = (result("math500", [1, 2], step, of) for step, of in ((0, model), (30, name)))
        small_run(tmp_path / name, model, replace(first, weights=weights), replace(last, weights=""))
        (tmp_path / name / "run.json").write_text(json.dumps({"weights": weights, "started": 0.0}))
        return load_run(tmp_path / name)

    here, there = run("a", "/here/model", "aaaaaaaa"), run("b", "/there/x", "aaaaaaaa")
    other = run("c", "/here/model", "cccccccc")
    assert list(rows([here, there])) == [("model", "Base"), ("model", "GRPO")]
    assert [model for model, _ in rows([here, other])][::2] == ["model (aaaaaa)", "model (cccccc)"]
    older = run("d", "/here/model", "")
    assert len({model for model, _ in rows([here, older])}) == 1


def test_evaluations_during_training_are_a_curve(tmp_path: Path) -> None:
    met = [replace(result("amc23", [100], step), versions=[step, step + 3]) for step in (0, 20, 40)]
    small_run(tmp_path / "run", MODEL, *met)
    page = write_report([tmp_path / "run"], tmp_path / "report").read_text()
    assert "Pass@K during training: run" in page
    assert (tmp_path / "report" / "during_training_run.png").exists()


def test_table_1_has_the_initial_policy_and_the_mean_of_each_methods_seeds(runs: list[Path]) -> None:
    table = table_1([load_run(folder) for folder in runs])
    assert table is not None
    assert table.columns == [("MATH500", 1), ("MATH500", 256), ("AIME 2025", 1), ("AIME 2025", 256)]
    assert [row[:2] for row in table.rows] == [("Qwen2.5-7B", m) for m in ("Base", "GRPO", "GRPO + HORA")]
    results = [r for f in runs[1:] for r in load_run(f).latest() if r.benchmark == "math500"]
    cell = table.rows[2][2][1]
    assert cell.value == pytest.approx(100 * np.mean([pass_at_k(r.correct, 256, 256) for r in results]))
    assert cell.low < cell.value < cell.high
    assert cell.runs == 2


def test_best_and_second_best_of_a_column_are_marked_within_their_model(runs: list[Path]) -> None:
    table = table_1([load_run(folder) for folder in runs])
    assert table is not None
    tex = latex(table).splitlines()
    for column in range(4):
        cells = [row[2][column] for row in table.rows]
        best, second = sorted({round(c.value, 1) for c in cells if c}, reverse=True)[:2]
        for cell, line in zip(cells, tex[5:], strict=False):
            value, shown = round(cell.value, 1), line.removesuffix(r" \\").split(" & ")[column + 2]
            marked = {best: rf"\textbf{{{value}}}", second: rf"\underline{{{value}}}"}
            assert cell.rank == {best: 1, second: 2}.get(value, 0)
            assert shown == marked.get(value, str(value))


def test_the_summary_shows_whether_runs_are_compute_matched(runs: list[Path]) -> None:
    grpo, hora = (summarise(f.name, load_run(f)) for f in runs[:2])
    assert grpo.rollouts_per_batch == hora.rollouts_per_batch == str(60 * G)
    assert grpo.rollouts == hora.rollouts == 60 * 60 * G
    assert grpo.tokens == 100 * grpo.rollouts
    assert hora.phase_b_to_none > 2 * grpo.phase_b_to_none


def test_a_batch_that_is_not_whole_yet_is_no_smaller_batch(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "live", "hit_utility", 0, steps=8, evaluated=False)
    groups = (folder / "groups.jsonl").read_text().splitlines(keepends=True)
    (folder / "groups.jsonl").write_text("".join(groups[:-20]))
    assert summarise("live", load_run(folder)).rollouts_per_batch == str(60 * G)
    (folder / "groups.jsonl").write_text("".join(groups[:20]))
    assert summarise("live", load_run(folder)).rollouts_per_batch == "–"


def test_the_share_without_signal_is_the_learners_and_warm_up_is_left_out_of_phase_b(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "hit_utility", 0, steps=11, evaluated=False)
    shares = {row["successes"]: row["phase_b"] for row in phase_b_share(lines(folder / "groups.jsonl"))}
    summary = summarise("run", load_run(folder))
    assert summary.share_zero_signal == pytest.approx(0.05)
    assert (summary.phase_b_to_none, summary.phase_b_to_all) == pytest.approx((shares[0], shares[G0]))
    (folder / "steps.jsonl").unlink()
    assert summarise("run", load_run(folder)).share_zero_signal is None


def test_a_trained_model_is_the_initial_policy_of_runs_that_began_with_it_alone(tmp_path: Path) -> None:
    trained = result("amc23", [256] * 40, 0, model="/runs/x/model")
    while_training = replace(result("aime25", [128] * 30, 0), versions=[0, 3])
    start = replace(result("aime24", [0] * 30, 0), versions=[0, 0])
    assert small_run(tmp_path / "late", MODEL, while_training, start).base() == [start]
    run = small_run(tmp_path / "x", MODEL, trained, start)
    assert run.base() == [start]
    of = {"Base": [None, None, 0.0, 0.0], "/runs/x/model": [100.0, 100.0, None, None]}
    assert rows([run]) == {("Qwen2.5-7B", method): values for method, values in of.items()}
    run = small_run(tmp_path / "w", "/runs/w/model", result("amc23", [1] * 40, 60, model="/runs/w/model"))
    assert [r.step for r in run.base()] == [60]
    assert run.latest() == []


def test_evaluations_of_the_initial_policy_are_averaged_and_copies_count_once(tmp_path: Path) -> None:
    low, high = (result("amc23", [c] * 40, 0) for c in (0, 256))
    runs = [small_run(tmp_path / name, MODEL, r) for name, r in (("a", low), ("b", high), ("c", low))]
    assert rows(runs) == {("Qwen2.5-7B", "Base"): [50.0, 100 * (0 + 1) / 2]}


def test_seeds_after_different_steps_are_not_averaged(tmp_path: Path) -> None:
    found = {"a": (0, 60), "b": (256, 60), "live": (128, 20)}
    runs = [small_run(tmp_path / n, MODEL, result("amc23", [c] * 40, s)) for n, (c, s) in found.items()]
    table = table_1(runs)
    assert table is not None
    shown = [(method, cells[0].value, cells[0].runs) for _, method, cells in table.rows if cells[0]]
    assert shown == [("GRPO, step 60", 50.0, 2), ("GRPO, step 20", 50.0, 1)]


def test_runs_that_learned_otherwise_are_not_averaged_as_seeds(tmp_path: Path) -> None:
    runs = []
    for name, rate, seed in (("a", 1e-6, 0), ("b", 1e-6, 1), ("fast", 3e-6, 0)):
        run = small_run(tmp_path / name, MODEL, result("amc23", [128] * 40, 60))
        optimizer = {"learning_rate": rate, "weight_decay": 0.0}
        config = {**run.config, "learner": {"optimizer": optimizer}, "run": {"seed": seed}}
        runs.append(replace(run, config=config))
    table = table_1(runs)
    assert table is not None
    found = [(method, cells[0].runs) for _, method, cells in table.rows if cells[0]]
    assert found == [("GRPO, learning_rate=1e-06", 2), ("GRPO, learning_rate=3e-06", 1)]


def test_models_of_one_folder_name_are_told_apart_by_more_of_their_path(tmp_path: Path) -> None:
    runs = [
        small_run(tmp_path / name, model, result("amc23", [c] * 40, 0, model=model))
        for name, model, c in (("1", "/runs/a/model", 0), ("2", "/runs/b/model", 256), ("3", MODEL, 0))
    ]
    found = [(model, values[0]) for (model, _), values in rows(runs).items()]
    assert found == [("a/model", 0.0), ("b/model", 100.0), ("Qwen2.5-7B", 0.0)]


def test_results_of_other_problems_or_temperatures_are_neither_averaged_nor_compared(tmp_path: Path) -> None:
    two = [result("amc23", [1] * 40, 5, answer=answer) for answer in ("1", "2")]
    assert two[0].problems == two[1].problems
    runs = [small_run(tmp_path / name, MODEL, r) for name, r in zip("ab", two, strict=True)]
    with pytest.raises(RunFolderError, match="AMC23"):
        table_1(runs)
    path = tmp_path / "b" / "evaluation" / "amc23-step5.json"
    old = json.loads(path.read_text())
    del old["problem_set"]
    path.write_text(json.dumps(old))
    assert len(rows([runs[0], load_run(tmp_path / "b")])) == 1
    hot = small_run(tmp_path / "c", MODEL, replace(two[0], temperature=0.1))
    with pytest.raises(RunFolderError, match="AMC23"):
        table_1([runs[0], hot])


@pytest.mark.parametrize(
    ("objective", "allocation", "method"),
    [
        ({}, {"rule": "uniform"}, "GRPO"),
        ({"advantage": "rloo"}, {"rule": "uniform"}, "RLOO"),
        ({}, {"rule": "hard_first"}, "GRPO + hard-first"),
        ({}, {"rounds": 4, "stop": "hit"}, "GRPO + HORA (rounds=4, stop=hit)"),
        ({"advantage": "likelihood"}, {}, "likelihood + HORA"),
        ({"advantage": "likelihood", "baseline": "wald"}, {}, "likelihood + HORA (baseline=wald)"),
        ({"advantage": "max_rl"}, {}, "MaxRL + HORA"),
        ({"advantage": "pkpo", "k": 4}, {}, "PKPO + HORA (k=4)"),
        ({"group_weight": "difficulty"}, {}, "GRPO + HORA (group_weight.kind=difficulty)"),
        ({"loss": "dapo"}, {}, "GRPO + HORA (loss=dapo)"),
        ({"loss": "dapo", "clip_high": 0.3}, {}, "GRPO + HORA (loss=dapo, clip_high=0.3)"),
    ],
)
def test_a_method_bears_the_papers_name_and_what_is_not_the_papers(
    tmp_path: Path, objective: dict[str, object], allocation: dict[str, object], method: str
) -> None:
    run = small_run(tmp_path / "run", MODEL, result("amc23", [1], 0))
    for written in (objective, ObjectiveConfig.model_validate(objective).model_dump(mode="json")):
        config = {"allocation": allocation, "learner": {"objective": written}}
        name, _, remarks = replace(run, config=config).method.partition(" (")
        wanted, _, of = method.partition(" (")
        assert (name, set(remarks.rstrip(")").split(", "))) == (wanted, set(of.rstrip(")").split(", ")))


def test_an_older_run_is_named_by_keys_that_are_gone(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", MODEL, result("amc23", [1], 0))
    older = {"ratio": "sequence", "aggregate": "group", "scale": None, "group_weight": {"tau": 0.12}}
    config = {"allocation": {"budget": "tokens", "alpha": 1.0}, "learner": {"objective": older}}
    assert replace(run, config=config).method == "GRPO + HORA (budget=tokens, ratio=sequence)"


@pytest.mark.system
def test_a_run_that_is_still_going_can_be_reported(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "live", "hit_utility", 0, steps=3, evaluated=False)
    for path in (folder / "groups.jsonl", folder / "steps.jsonl"):
        path.write_text(path.read_text() + '{"step": 3, "tr')
    page = write_report([folder], tmp_path / "out").read_text()
    assert "no evaluations" in page
    assert "Allocation dynamics: live" in page


def test_evaluations_alone_can_be_reported(tmp_path: Path) -> None:
    write_result(tmp_path / "only" / "evaluation", result("amc23", np.arange(40), 0))
    page = write_report([tmp_path / "only"], tmp_path / "out").read_text()
    assert "AMC23" in page
    assert "Base" in page


def test_updates_that_moved_the_policy_far_are_named_by_run_and_step(tmp_path: Path) -> None:
    for name, entropies in (("far", (1.12, None, 1.1, 0.5)), ("near", (1.12, 1.1))):
        (tmp_path / name).mkdir()
        steps = [{"step": i, "entropy/trained": entropy} for i, entropy in enumerate(entropies)]
        write_lines(tmp_path / name / "steps.jsonl", steps)
    page = write_report([tmp_path / "far", tmp_path / "near"], tmp_path / "out").read_text()
    assert re.findall(r"Updates that moved the policy far: (\w+)", page) == ["far"]
    assert re.findall(r"<li>(step \d+): the policy moved far", page) == ["step 3"]


@pytest.mark.parametrize(
    ("groups", "named"),
    [('{"step": 1}\n', r"groups\.jsonl: .*'batch'"), ("{\n{}\n", r"groups\.jsonl:1: ")],
)
def test_records_that_are_none_are_named_with_their_file(tmp_path: Path, groups: str, named: str) -> None:
    (tmp_path / "groups.jsonl").write_text(groups)
    with pytest.raises(RunFolderError, match=named):
        load_run(tmp_path)


def test_a_result_is_read_as_it_was_written_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    written = result("aime24", np.arange(30), 7)
    path = write_result(tmp_path, written)
    assert read_result(path) == written
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".csv", ".md", ".png", ".svg"}
    assert len((tmp_path / "aime24-step7.csv").read_text().splitlines()) == 1 + len(written.ks)

    for damage in ("", "{}", '{"benchmark": 1}', "[]"):
        path.write_text(damage)
        with pytest.raises(ConfigError, match=r"aime24-step7\.json"):
            read_result(path)


def test_the_moving_average_is_centred_and_shrinks_at_the_ends() -> None:
    values = np.array([1.0, 2.0, 6.0, np.nan, 10.0])
    np.testing.assert_allclose(moving_average(values, 3), [1.5, 3.0, 4.0, 8.0, 10.0])
    np.testing.assert_allclose(moving_average(np.arange(9.0), 5)[2:-2], np.arange(2.0, 7.0))
    np.testing.assert_allclose(moving_average(np.ones(4), 6), np.ones(4))
    values[1] = np.inf  # the gradient of a step that was refused
    np.testing.assert_allclose(moving_average(values, 3), [1.0, 3.5, 6.0, 8.0, 10.0])
