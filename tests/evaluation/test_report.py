from __future__ import annotations

import heapq
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from common.config import Objective
from common.types import Prompt
from deploy.launch.summary import phase_b_share
from evaluation.benchmarks import BENCHMARKS
from evaluation.evaluate import Counts
from evaluation.pass_at_k import pass_at_k
from evaluation.report.runs_report import write_report
from evaluation.report.smoothing import moving_average
from evaluation.report.tables import summarise, table_1
from evaluation.results import Result, ResultError, make_result, read_result, write_result
from evaluation.run_folders import Run, RunFolderError, load_run

G, G0, PROMPTS = 32, 8, 15
MODEL = "hub/Qwen2.5-7B"


def hit_utility(counts: np.ndarray, budget: int) -> list[int]:
    """Greedy on the marginals of a Beta(1, 1) prior, as the paper's algorithm 1."""
    extra = [0] * len(counts)
    heap = [(-(1 + c) / (2 + G0), i) for i, c in enumerate(counts)]
    heapq.heapify(heap)
    for _ in range(budget):
        marginal, i = heapq.heappop(heap)
        extra[i] += 1
        beta, total = 1 + G0 - counts[i] + extra[i] - 1, 2 + G0 + extra[i] - 1
        heapq.heappush(heap, (marginal * beta / (total + 1), i))
    return extra


def make_run(
    folder: Path, rule: str, seed: int, steps: int = 60, advantage: str = "grpo", evaluated: bool = True
) -> Path:
    """A run folder as a run of Γ = 4·15 prompts leaves it, its counts drawn with success rates that rise.

    One shard of every batch is trained a step later, as with staleness 1; the last step takes two of its own.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    config = {
        "model": {"path": MODEL},
        "rollout": {"pre_rollouts": G0, "prompts_per_batch": 4 * PROMPTS},
        "allocation": {"rule": rule, "prior": "fixed"},
        "learner": {"objective": {"advantage": advantage}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with (folder / "groups.jsonl").open("w") as groups, (folder / "steps.jsonl").open("w") as metrics:
        for step in range(steps):
            acting = "uniform" if step < 5 else rule
            for shard in range(4):
                p = rng.beta(0.3 + 0.002 * step, 0.15, PROMPTS)
                counts = rng.binomial(G0, p)
                budget = PROMPTS * (G - G0)
                extra = [G - G0] * PROMPTS if acting == "uniform" else hit_utility(counts, budget)
                for i in range(PROMPTS):
                    hits = int(counts[i] + rng.binomial(extra[i], p[i]))
                    line = {
                        "step": min(steps - 1, step + (shard == 3)),
                        "batch": step,
                        "shard": shard,
                        "epoch": 0,
                        "prompt_index": i,
                    }
                    line |= {"rule": acting, "prior": [1.0, 1.0], "trials": G0, "successes": int(counts[i])}
                    line |= {
                        "extra": extra[i],
                        "size": G0 + extra[i],
                        "hits": hits,
                        "tokens": 100 * (G0 + extra[i]),
                    }
                    groups.write(json.dumps(line) + "\n")
            noise = rng.normal(0, 1, 4)
            record = {
                "step": step,
                "loss": noise[0] / 100,
                "reward/accuracy": 0.3 + 0.005 * step + noise[1] / 50,
            }
            record |= {
                "entropy": 0.5 * 0.98**step + 0.1 + noise[2] / 100,
                "length/mean": 700 + 3 * step + 20 * noise[3],
            }
            record |= {"reward/format": min(1.0, 0.5 + 0.1 * step), "groups/zero_signal": step / 100}
            metrics.write(json.dumps(record) + "\n")
    for name, problems, scale in (("math500", 50, 1.0), ("aime25", 30, 0.15)) if evaluated else ():
        for step, gain in ((0, 0.6), (steps, 1.0)):
            correct = rng.binomial(256, np.clip(rng.beta(0.4, 0.6, problems) * scale * gain, 0, 1))
            write_result(folder / "evaluation", result(name, correct, step))
    return folder


def result(
    name: str, correct: Sequence[int] | np.ndarray, step: int, model: str | None = None, answer: str = "1"
) -> Result:
    benchmark, n = BENCHMARKS[name].sized(256, None), len(correct)
    rest = np.full(n, 250)
    counts = Counts(256, np.arange(n), np.asarray(correct), rest, rest * 400, rest // 10)
    problems = [Prompt(i, f"problem {i}", answer, np.zeros(1, np.int32)) for i in range(n)]
    of = model or ("run" if step else MODEL)
    return make_result(benchmark, counts, problems, of, step, temperature=0.7, seed=0)


def rows(runs: Sequence[Run]) -> dict[tuple[str, str], list[float | None]]:
    """Table 1 as (model, method) -> values."""
    table = table_1(runs)
    assert table is not None
    return {(model, method): [c and c.value for c in cells] for model, method, cells in table.rows}


def small_run(folder: Path, model: str = MODEL, *results: Result) -> Run:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        yaml.safe_dump({"model": {"path": model}, "allocation": {"rule": "uniform"}})
    )
    for r in results:
        write_result(folder / "evaluation", r)
    return load_run(folder)


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
    assert titles == [
        "Pass@K: Qwen2.5-7B",
        "Allocation dynamics: grpo-0",
        "Allocation dynamics: hora-0",
        "Allocation dynamics: hora-1",
        "Learning curves",
        "Length and entropy",
    ]
    assert len(list(page.parent.glob("*.png"))) == len(list(page.parent.glob("*.svg"))) == len(titles)
    assert not re.search(r'(src|href)="(?![#])', html)


@pytest.mark.system
def test_a_report_is_dated_holds_configurations_and_follows_a_dark_system(
    runs: list[Path], tmp_path: Path
) -> None:
    html = write_report(runs[:1], tmp_path / "report").read_text()
    assert re.search(r"Written on 20\d\d-\d\d-\d\d", html)
    assert "pre_rollouts: 8" in html
    assert "prefers-color-scheme: dark" in html
    figure = html[html.index("<svg") : html.index("</svg>")]
    assert "currentColor" in figure
    assert "#000000" not in figure


def test_a_model_is_known_by_its_weights_and_not_by_its_path(tmp_path: Path) -> None:
    def run(name: str, model: str, weights: str) -> Run:
        of = [
            replace(result("math500", [1, 2], step, model if not step else name), weights=w)
            for step, w in ((0, weights), (30, ""))
        ]
        small_run(tmp_path / name, model, *of)
        (tmp_path / name / "run.json").write_text(json.dumps({"weights": weights, "started": 0.0}))
        return load_run(tmp_path / name)

    here, there, other = (
        run("a", "/here/model", "aaaaaaaa"),
        run("b", "/there/x", "aaaaaaaa"),
        run("c", "/here/model", "cccccccc"),
    )
    assert [(model, method) for model, method in rows([here, there])] == [
        ("model", "Base"),
        ("model", "GRPO"),
    ]
    assert [model for model, _ in rows([here, other])][::2] == ["model (aaaaaa)", "model (cccccc)"]
    older = run("d", "/here/model", "")
    assert len({model for model, _ in rows([here, older])}) == 1


def test_evaluations_during_training_are_a_curve_with_the_weights_they_met(tmp_path: Path) -> None:
    met = [replace(result("amc23", [100], step), versions=[step, step + 3]) for step in (0, 20, 40)]
    small_run(tmp_path / "run", MODEL, *met)
    page = write_report([tmp_path / "run"], tmp_path / "report").read_text()
    assert "<td>AMC23</td><td>v20 to v23</td><td>20</td><td>39.1<br>" in page
    assert (tmp_path / "report" / "during_training_run.png").exists()


def test_table_1_has_the_initial_policy_and_the_mean_of_each_methods_seeds(runs: list[Path]) -> None:
    table = table_1([load_run(folder) for folder in runs])
    assert table is not None
    assert table.columns == [("MATH500", 1), ("MATH500", 256), ("AIME 2025", 1), ("AIME 2025", 256)]
    assert [row[:2] for row in table.rows] == [
        ("Qwen2.5-7B", "Base"),
        ("Qwen2.5-7B", "GRPO"),
        ("Qwen2.5-7B", "GRPO + HORA"),
    ]
    means = [
        np.mean(
            [pass_at_k(r.correct, 256, 256).mean() for r in load_run(f).latest() if r.benchmark == "math500"]
        )
        for f in runs[1:]
    ]
    cell = table.rows[2][2][1]
    assert cell is not None
    assert cell.value == pytest.approx(100 * np.mean(means))
    assert cell.low < cell.value < cell.high
    assert cell.runs == 2


def test_the_best_of_a_column_is_marked_within_its_model(runs: list[Path]) -> None:
    table = table_1([load_run(folder) for folder in runs])
    assert table is not None
    for column in range(4):
        cells = [row[2][column] for row in table.rows]
        best = max(round(c.value, 1) for c in cells if c)
        assert [c.best for c in cells if c] == [round(c.value, 1) == best for c in cells if c]


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
    lines = (folder / "groups.jsonl").read_text().splitlines(keepends=True)
    (folder / "groups.jsonl").write_text("".join(lines[:-20]))
    assert summarise("live", load_run(folder)).rollouts_per_batch == str(60 * G)
    (folder / "groups.jsonl").write_text("".join(lines[:20]))
    assert summarise("live", load_run(folder)).rollouts_per_batch == "–"


def test_the_share_without_signal_is_the_learners(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "uniform", 0, steps=11, evaluated=False)
    assert summarise("run", load_run(folder)).share_zero_signal == pytest.approx(0.05)
    (folder / "steps.jsonl").unlink()
    assert summarise("run", load_run(folder)).share_zero_signal is None


def test_the_uniform_warm_up_is_no_part_of_where_phase_b_went(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "hit_utility", 0, steps=10, evaluated=False)
    found = [json.loads(line) for line in (folder / "groups.jsonl").read_text().splitlines()]
    shares = {row["successes"]: row["phase_b"] for row in phase_b_share(found)}
    summary = summarise("run", load_run(folder))
    assert (summary.phase_b_to_none, summary.phase_b_to_all) == pytest.approx((shares[0], shares[G0]))


def test_a_trained_model_is_never_the_initial_policy(tmp_path: Path) -> None:
    trained = result("amc23", [256] * 40, 0, model="/runs/x/model")
    run = small_run(tmp_path / "x", MODEL, trained, result("aime24", [0] * 30, 0))
    assert [r.benchmark for r in run.base()] == ["aime24"]
    assert rows([run]) == {
        ("Qwen2.5-7B", "Base"): [None, None, 0.0, 0.0],
        ("Qwen2.5-7B", "/runs/x/model"): [100.0, 100.0, None, None],
    }


def test_a_policy_that_was_trained_before_is_still_the_initial_one_of_its_run(tmp_path: Path) -> None:
    run = small_run(tmp_path / "x", "/runs/w/model", result("amc23", [1] * 40, 60, model="/runs/w/model"))
    assert [r.step for r in run.base()] == [60]
    assert run.latest() == []


def test_different_evaluations_of_the_initial_policy_are_averaged_and_copies_count_once(
    tmp_path: Path,
) -> None:
    one, other = (result("amc23", [c] * 40, 0) for c in (0, 256))
    runs = [small_run(tmp_path / name, MODEL, r) for name, r in (("a", one), ("b", other), ("c", one))]
    assert rows(runs) == {("Qwen2.5-7B", "Base"): [50.0, 100 * (0 + 1) / 2]}


def test_models_of_one_folder_name_are_told_apart_by_more_of_their_path(tmp_path: Path) -> None:
    runs = [
        small_run(tmp_path / name, model, result("amc23", [c] * 40, 0, model=model))
        for name, model, c in (("1", "/runs/a/model", 0), ("2", "/runs/b/model", 256), ("3", MODEL, 0))
    ]
    assert [(model, values[0]) for (model, _), values in rows(runs).items()] == [
        ("a/model", 0.0),
        ("b/model", 100.0),
        ("Qwen2.5-7B", 0.0),
    ]


def test_results_of_other_problems_are_neither_averaged_nor_compared(tmp_path: Path) -> None:
    two = [result("amc23", [1] * 40, 5, answer=answer) for answer in ("1", "2")]
    assert two[0].problems == two[1].problems
    runs = [small_run(tmp_path / name, MODEL, r) for name, r in zip("ab", two, strict=True)]
    with pytest.raises(
        RunFolderError, match=r"AMC23: run \(step 5\) and run \(step 5\) were evaluated on different"
    ):
        table_1(runs)
    path = tmp_path / "b" / "evaluation" / "amc23-step5.json"
    old = json.loads(path.read_text())
    del old["problem_set"]
    path.write_text(json.dumps(old))
    assert len(rows([runs[0], load_run(tmp_path / "b")])) == 1


def test_results_of_other_temperatures_are_not_averaged(tmp_path: Path) -> None:
    warm = result("amc23", [1] * 40, 5)
    runs = [
        small_run(tmp_path / name, MODEL, r)
        for name, r in (("a", warm), ("b", replace(warm, temperature=1.0)))
    ]
    with pytest.raises(RunFolderError, match="different temperatures"):
        table_1(runs)


@pytest.mark.parametrize(
    ("objective", "method"),
    [
        ({"advantage": "likelihood"}, "likelihood + HORA"),
        ({"advantage": "likelihood", "baseline": "wald"}, "likelihood + HORA (baseline=wald)"),
        ({"advantage": "max_rl"}, "MaxRL + HORA"),
        ({"advantage": "pkpo", "k": 4}, "PKPO + HORA (k=4)"),
        ({"group_weight": "difficulty"}, "GRPO + HORA (group_weight=difficulty)"),
        ({"aggregate": "token", "clip_high": 0.28}, "GRPO + HORA (clip_high=0.28, aggregate=token)"),
    ],
)
def test_runs_of_other_objectives_are_other_methods(
    tmp_path: Path, objective: dict[str, object], method: str
) -> None:
    run = load_run(make_run(tmp_path / "run", "hit_utility", 0, steps=1, evaluated=False))
    whole = Objective.model_validate(objective).model_dump(mode="json")
    for written in (objective, whole):
        config = {**run.config, "learner": {"objective": written}}
        name, _, remarks = replace(run, config=config).method.partition(" (")
        wanted, _, of = method.partition(" (")
        assert (name, set(remarks.rstrip(")").split(", "))) == (wanted, set(of.rstrip(")").split(", ")))


def test_methods_bear_the_papers_names(tmp_path: Path) -> None:
    names = [
        ("uniform", "grpo"),
        ("hit_utility", "grpo"),
        ("uniform", "rloo"),
        ("hit_utility", "rloo"),
        ("hard_first", "grpo"),
    ]
    runs = [
        load_run(make_run(tmp_path / f"{r}-{a}", r, 0, steps=1, advantage=a, evaluated=False))
        for r, a in names
    ]
    assert [r.method for r in runs] == ["GRPO", "GRPO + HORA", "RLOO", "RLOO + HORA", "GRPO + hard-first"]


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


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no such run folder"):
        load_run(tmp_path / "absent")
    with pytest.raises(RunFolderError, match="is it a run folder"):
        load_run(tmp_path)
    (tmp_path / "groups.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(RunFolderError, match=r"groups\.jsonl: a line has no number 'batch'"):
        load_run(tmp_path)
    (tmp_path / "groups.jsonl").write_text("{\n{}\n")
    with pytest.raises(RunFolderError, match=r"groups\.jsonl:1: not JSON"):
        load_run(tmp_path)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = result("aime24", np.arange(30), 7)
    path = write_result(tmp_path, written)
    assert read_result(path) == written
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".csv", ".md", ".png", ".svg"}
    lines = (tmp_path / "aime24-step7.csv").read_text().splitlines()
    assert len(lines) == 1 + len(written.ks)
    assert lines[1].split(",")[:6] == ["aime24", "run", "7", "30", "256", "1"]


@pytest.mark.parametrize("damage", ["", "{}", '{"benchmark": 1}', "[]"])
def test_a_damaged_result_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(damage)
    with pytest.raises(ResultError, match=r"x\.json: not a result"):
        read_result(path)


def test_the_moving_average_is_centred_and_shrinks_at_the_ends() -> None:
    values = np.array([1.0, 2.0, 6.0, np.nan, 10.0])
    np.testing.assert_allclose(moving_average(values, 3), [1.5, 3.0, 4.0, 8.0, 10.0])
    np.testing.assert_allclose(moving_average(np.arange(9.0), 5)[2:-2], np.arange(2.0, 7.0))
    np.testing.assert_allclose(moving_average(np.ones(4), 6), np.ones(4))
