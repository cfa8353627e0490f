import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hora_rl.deploy.launch.summary import phase_b_share
from hora_rl.evaluation.pass_at_k import pass_at_k
from hora_rl.evaluation.report.runs_report import write_report
from hora_rl.evaluation.report.tables import latex, summarise, table_1
from hora_rl.evaluation.run_folders import Run, load_run
from tests.support.jsonl import lines
from tests.support.reported_runs import G0, MODEL, G, make_run, result, rows, small_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [
        make_run(root / "grpo-0", "uniform", 0),
        make_run(root / "hora-0", "hit_utility", 1),
        make_run(root / "hora-1", "hit_utility", 2),
    ]


@pytest.mark.system
def test_a_report_is_one_page_with_its_figures_inside_and_beside_it(runs: list[Path], tmp_path: Path) -> None:
    page = write_report(runs, tmp_path / "report")
    html = page.read_text()
    titles = re.findall(r'<figure role="img" aria-label="([^"]+)">\s*<svg', html)
    assert len(titles) == len(set(titles)) == 6
    assert len(list(page.parent.glob("*.png"))) == len(list(page.parent.glob("*.svg"))) == len(titles)
    assert not re.search(r'(src|href)="(?![#])', html)


def test_a_model_is_known_by_its_weights_and_not_by_its_path(tmp_path: Path) -> None:
    def run(name: str, model: str, weights: str) -> Run:
        of = [
            replace(result("math500", [1, 2], step, model if not step else name), weights=w)
            for step, w in ((0, weights), (30, ""))
        ]
        small_run(tmp_path / name, model, *of)
        (tmp_path / name / "run.json").write_text(json.dumps({"weights": weights, "started": 0.0}))
        return load_run(tmp_path / name)

    here, there = run("a", "/here/model", "aaaaaaaa"), run("b", "/there/x", "aaaaaaaa")
    other = run("c", "/here/model", "cccccccc")
    assert list(rows([here, there])) == [("model", "Base"), ("model", "GRPO")]
    assert [model for model, _ in rows([here, other])][::2] == ["model (aaaaaa)", "model (cccccc)"]
    older = run("d", "/here/model", "")
    assert len({model for model, _ in rows([here, older])}) == 1


def test_evaluations_during_training_are_a_curve_with_the_weights_they_met(tmp_path: Path) -> None:
    met = [replace(result("amc23", [100], step), versions=[step, step + 3]) for step in (0, 20, 40)]
    small_run(tmp_path / "run", MODEL, *met)
    page = write_report([tmp_path / "run"], tmp_path / "report").read_text()
    assert re.search(r"<td>AMC23</td><td>v20 to v23</td><td>20</td>\s*<td>39\.1<br>", page)
    assert (tmp_path / "report" / "during_training_run.png").exists()


def test_table_1_has_the_initial_policy_and_the_mean_of_each_methods_seeds(runs: list[Path]) -> None:
    table = table_1([load_run(folder) for folder in runs])
    assert table is not None
    assert table.columns == [("MATH500", 1), ("MATH500", 256), ("AIME 2025", 1), ("AIME 2025", 256)]
    assert [row[:2] for row in table.rows] == [("Qwen2.5-7B", m) for m in ("Base", "GRPO", "GRPO + HORA")]
    results = [r for f in runs[1:] for r in load_run(f).latest() if r.benchmark == "math500"]
    cell = table.rows[2][2][1]
    assert cell is not None
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
            assert cell is not None
            value, shown = round(cell.value, 1), line.removesuffix(r" \\").split(" & ")[column + 2]
            marked = {best: rf"\textbf{{{value}}}", second: rf"\underline{{{value}}}"}
            assert cell.place == {best: 1, second: 2}.get(value, 0)
            assert shown == marked.get(value, str(value))


def test_the_summary_shows_whether_runs_are_compute_matched(runs: list[Path]) -> None:
    grpo, hora = (summarise(f.name, load_run(f)) for f in runs[:2])
    assert grpo.rollouts_per_batch == hora.rollouts_per_batch == str(60 * G)
    assert grpo.rollouts == hora.rollouts == 60 * 60 * G
    assert grpo.tokens == 100 * grpo.rollouts
    assert hora.phase_b_to_none is not None
    assert grpo.phase_b_to_none is not None
    assert hora.phase_b_to_none > 2 * grpo.phase_b_to_none


def test_a_batch_that_is_not_whole_yet_is_no_smaller_batch(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "live", "hit_utility", 0, steps=8, evaluated=False)
    groups = (folder / "groups.jsonl").read_text().splitlines(keepends=True)
    (folder / "groups.jsonl").write_text("".join(groups[:-20]))
    assert summarise("live", load_run(folder)).rollouts_per_batch == str(60 * G)
    (folder / "groups.jsonl").write_text("".join(groups[:20]))
    assert summarise("live", load_run(folder)).rollouts_per_batch == "–"


def test_the_share_without_signal_is_the_learners_and_the_warm_up_is_left_out_of_phase_b(
    tmp_path: Path,
) -> None:
    folder = make_run(tmp_path / "run", "hit_utility", 0, steps=11, evaluated=False)
    shares = {row["successes"]: row["phase_b"] for row in phase_b_share(lines(folder / "groups.jsonl"))}
    summary = summarise("run", load_run(folder))
    assert summary.share_zero_signal == pytest.approx(0.05)
    assert (summary.phase_b_to_none, summary.phase_b_to_all) == pytest.approx((shares[0], shares[G0]))
    (folder / "steps.jsonl").unlink()
    assert summarise("run", load_run(folder)).share_zero_signal is None
