"""Metrics have one name each: in the records, TensorBoard, Weights & Biases, /status and on the page. Where
Phase B went: every view and report counts the same cycles and cuts the same classes."""

import asyncio
import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hora_rl.common.live.telemetry import record_evaluation
from hora_rl.deploy.launch.summary import phase_b_share
from hora_rl.deploy.monitor.feed import BY_STEP, History
from hora_rl.deploy.monitor.prometheus import gauges
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.web import PAGE
from hora_rl.evaluation.phase_b import PhaseB, classes, counted, total
from hora_rl.evaluation.report.figures import allocation_figure
from hora_rl.evaluation.report.runs_report import summarise
from hora_rl.evaluation.run_folders import Run, load_run
from hora_rl.learner.records.recorder import step_metrics
from hora_rl.learner.records.step_records import Records, group_record, log_evaluation
from tests.support.jsonl import lines
from tests.support.synthetic_run import SyntheticRun, config_of

TIMES = {f"time/{part}": 0.5 for part in ("step", "wait", "forward_backward", "gather", "transfer", "load")}


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, dict[str, float]]]:
    """(run id, step, values) of every call of wandb's `log`."""
    found: list[tuple[str, int, dict[str, float]]] = []

    def init(id: str, **_: Any) -> Mock:
        return Mock(log=lambda values, step: found.append((id, step, values)))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    return found


def shown_by_the_page() -> set[str]:
    """Names that the page takes out of the learner's metrics, and those of its charts by step."""
    text = PAGE.read_text()
    fields = set(re.findall(r"\bm\.([a-z_]+)\b", text)) | set(re.findall(r'\bm\["([a-z/]+)"\]', text))
    return fields | set(BY_STEP)


def test_every_view_of_a_step_has_the_same_names(redis_url, tmp_path, logged):
    run = SyntheticRun(redis_url, config_of("names", learner={"wandb": "project"}))
    asyncio.run(run.generate(0))
    groups = run._shard(0, 0)
    sums = {"tokens_trained": 8.0, "entropy": 4.0, "drift": 1.0, "drift_tokens": 2.0, "loss": 0.1}
    metrics = step_metrics(0, groups, sums, run.config, ranks=1, grad_norm=1.0, learning_rate=0.1)
    metrics |= {**TIMES, "tokens_per_second": 10.0, "applied": 1.0}
    records = Records(run.config, run.redis, tmp_path, 0)
    records.step(0, [group_record(0, group, run.config) for group in groups], metrics)
    records.close()

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    names = set(metrics)
    assert set(events.Tags()["scalars"]) == names
    assert set(json.loads((tmp_path / "steps.jsonl").read_text())) == names
    assert [(run, step, set(values)) for run, step, values in logged] == [("names", 0, names)]
    assert set(read_run(run.redis, "names").learner) == names
    assert shown_by_the_page() <= names, shown_by_the_page() - names


def test_pass_at_k_has_the_names_of_status_in_tensorboard_and_wandb_whenever_the_learner_starts(
    redis_url, tmp_path, logged
):
    run = SyntheticRun(redis_url, config_of("judged", learner={"wandb": "project"}))
    evaluations = {0: {"pass@1": 0.25, "pass@16": 0.5}, 30: {"pass@1": 0.75, "pass@16": 1.0}}
    for version, values in evaluations.items():
        record_evaluation(run.redis, "judged", version, values)
        log_evaluation(run.config, tmp_path, version, values)
        Records(run.config, run.redis, tmp_path, 0).close()  # its folder forgets every step from 0 on

    assert read_run(run.redis, "judged").evaluations == evaluations
    assert logged == [("judged-evaluation", version, values) for version, values in evaluations.items()]
    events = EventAccumulator(str(tmp_path / "tensorboard" / "evaluation"))
    events.Reload()
    for name in ("pass@1", "pass@16"):
        kept = {e.step: e.value for e in events.Scalars(name)}
        assert kept == {version: values[name] for version, values in evaluations.items()}


WARM_UP, BATCHES = 2, 5
POINT = 1e-4


@pytest.mark.parametrize("trials", range(1, 12))
def test_the_classes_hold_every_count_once_and_split_at_half(trials: int) -> None:
    found = classes(trials)
    assert [c for low, high in found for c in range(low, high + 1)] == list(range(trials + 1))
    assert all(high + 1 == low for (_, high), (low, _) in pairwise(found))
    few = [c for low, high in found[1:-1] if 2 * low < trials for c in range(low, high + 1)]
    assert few == [c for c in range(1, trials) if 2 * c < trials]
    assert trials != 8 or found == [(0, 0), (1, 3), (4, 7), (8, 8)], "the paper's"


def test_uniform_cycles_count_only_where_there_are_no_others() -> None:
    assert counted(["uniform", "hit_utility", "uniform"]).tolist() == [False, True, False]
    assert counted(["uniform", "uniform"]).tolist() == [True, True]
    warm_up, own = PhaseB.count([0, 2], [1, 1], 2), PhaseB.count([0, 1], [2, 0], 2)
    assert total([("uniform", warm_up), ("mixed", own)], 2).rollouts.tolist() == [2, 0, 0]
    assert total([("uniform", warm_up)], 2).rollouts.tolist() == [1, 0, 1]
    [nothing] = PhaseB.count([], [], 0).shares()
    assert (nothing.prompts, nothing.phase_b) == (None, None)


@pytest.fixture
def run(redis_url: str) -> SyntheticRun:
    run = SyntheticRun(redis_url, config_of("phase-b"), warm_up=WARM_UP)
    for batch in range(BATCHES):
        asyncio.run(run.generate(batch))
        run.train(batch)
    return run


def expected(run: SyntheticRun) -> list[tuple[float, float]]:
    """Shares of prompts and of Phase B for each c, of the cycles after the warm-up, counted by hand."""
    groups = [g for g in run.groups if g.batch >= WARM_UP]
    spent = sum(g.extra for g in groups)
    of_c = [[g for g in groups if g.successes == c] for c in range(9)]
    return [(len(of) / len(groups), sum(g.extra for g in of) / spent) for of in of_c]


def recorded(run: SyntheticRun, folder: Path) -> Run:
    groups = (json.dumps(group_record(g.batch, g, run.config)) + "\n" for g in run.groups)
    (folder / "groups.jsonl").write_text("".join(groups))
    return load_run(folder)


def test_terminal_page_prometheus_summary_tables_and_figures_agree(run: SyntheticRun, tmp_path: Path) -> None:
    wanted = [pytest.approx(pair, abs=POINT) for pair in expected(run)]
    state = read_run(run.redis, "phase-b")
    assert [(s.prompts, s.phase_b) for s in state.shares] == wanted

    shown = {(name, tags["successes"]): v for name, tags, v in gauges(state) if "successes" in tags}
    names = ("hora_phase_a_prompts", "hora_phase_b_rollouts")
    by_phase = [[shown[name, str(c)] for c in range(9)] for name in names]
    assert [(a / sum(by_phase[0]), b / sum(by_phase[1])) for a, b in zip(*by_phase, strict=True)] == wanted

    folder = recorded(run, tmp_path)
    of_classes = phase_b_share(lines(tmp_path / "groups.jsonl"))
    rows = {row["successes"]: (row["prompts"], row["phase_b"]) for row in of_classes}
    assert [rows.get(c, (0.0, 0.0)) for c in range(9)] == wanted
    left, right = allocation_figure(folder).axes
    heights = [bar.get_height() for bar in left.patches]  # type: ignore[attr-defined]
    assert list(zip(heights[:9], heights[9:], strict=True)) == wanted
    assert right.lines[0].get_xdata().tolist() == [2, 3, 4]  # type: ignore[union-attr]
    summary = summarise("phase-b", folder)
    ends = [expected(run)[c][1] for c in (0, 8)]
    assert [summary.phase_b_to_none, summary.phase_b_to_all] == pytest.approx(ends, abs=POINT)
    check_chart(run)


def check_chart(run: SyntheticRun) -> None:
    """The page's chart over batches leaves the warm-up out."""
    shares = json.loads(History("phase-b").columns(run.redis))["shares"]
    assert shares["batch"] == [2, 3, 4]
    assert shares["classes"] == ["0", "1-3", "4-7", "8"]
    groups = [g for g in run.groups if g.batch == 3]
    few = sum(g.extra for g in groups if 1 <= g.successes <= 3) / sum(g.extra for g in groups)
    assert shares["phase_b"][1][1] == pytest.approx(few, abs=POINT)


def test_the_warm_up_shows_while_there_is_nothing_else(redis_url: str) -> None:
    run = SyntheticRun(redis_url, config_of("warming"), warm_up=WARM_UP)
    assert read_run(run.redis, "warming").shares == ()
    asyncio.run(run.generate(0))
    state = read_run(run.redis, "warming")
    assert sum(state.phase_b.values()) == 8 * (16 - 8)
