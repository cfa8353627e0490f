"""A step's metrics have one name each: in the records, TensorBoard, Weights & Biases, /status and on the page."""

import asyncio
import json
import re
import sys
import types

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from actors.history import BY_STEP
from actors.web import PAGE
from benchmarks.synthetic_run import SyntheticRun, config_of
from common.telemetry import read_run
from learner.metrics import step_metrics
from learner.records import Records

TIMES = {f"time/{part}": 0.5 for part in ("step", "wait", "forward_backward", "gather", "transfer", "load")}


def shown_by_the_page() -> set[str]:
    """Names that the page takes out of the learner's metrics, and those of its charts by step."""
    text = PAGE.read_text()
    fields = set(re.findall(r"\bm\.([a-z_]+)\b", text)) | set(re.findall(r'\bm\["([a-z/]+)"\]', text))
    return fields | set(BY_STEP)


def test_every_view_of_a_step_has_the_same_names(redis_url, tmp_path, monkeypatch):
    logged: list[dict] = []
    board = types.SimpleNamespace(log=lambda values, step: logged.append(values), finish=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **_: board))
    run = SyntheticRun(redis_url, config_of("names", learner={"wandb": "project"}))
    asyncio.run(run.generate(0))
    groups = run._shard(0, 0)
    sums = {"tokens_trained": 8.0, "entropy": 4.0, "drift": 1.0, "drift_tokens": 2.0, "loss": 0.1}
    metrics = step_metrics(0, groups, sums, run.config, grad_norm=1.0, learning_rate=0.1)
    metrics |= {**TIMES, "tokens_per_second": 10.0, "applied": 1.0}
    records = Records(run.config, run.redis, tmp_path, 0)
    records.step(0, groups, metrics)
    records.close()

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    names = set(metrics)
    assert set(events.Tags()["scalars"]) == names
    assert set(json.loads((tmp_path / "steps.jsonl").read_text())) == names
    assert [set(values) for values in logged] == [names]
    assert set(read_run(run.redis, "names").learner) == names
    assert shown_by_the_page() <= names, shown_by_the_page() - names
