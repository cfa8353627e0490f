"""Metrics have one name each: in the records, TensorBoard, Weights & Biases, /status and on the page."""

import asyncio
import json
import re
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hora_rl.common.live.telemetry import record_evaluation
from hora_rl.deploy.monitor.history import BY_STEP
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.web import PAGE
from hora_rl.learner.metrics import step_metrics
from hora_rl.learner.records import Records, group_record, log_evaluation
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
