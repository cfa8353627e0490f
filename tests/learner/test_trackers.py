"""Weights & Biases and MLflow without a network, with the real packages."""

from __future__ import annotations

import http.server
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from hora_rl.common.config import Config
from hora_rl.common.load import load
from hora_rl.learner import trackers as module
from hora_rl.learner.records import log_evaluation
from hora_rl.learner.trackers import MLflow, trackers

pytestmark = pytest.mark.system
STEPS = {
    0: {"reward": 0.25, "reward/rewards:score": 0.5},
    1: {"reward": 0.75, "reward/rewards:score": math.nan},
}


def config(*overrides: str) -> Config:
    return load("tiny", ["run.name=tracked", "queue.url=redis://:secret-word@127.0.0.1:1", *overrides])


def logged(chosen: Config, folder: Path, steps: dict[int, dict[str, float]] = STEPS) -> None:
    found = trackers(chosen, folder)
    for step, values in steps.items():
        for tracker in found:
            tracker.log(values, step)
    for tracker in found:
        tracker.close()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return module.mlflow_client(tmp_path)


def test_mlflow_keeps_a_run_in_its_folder_and_continues_it(tmp_path: Path, client: Any) -> None:
    chosen = config("learner.mlflow=sums")
    logged(chosen, tmp_path)
    logged(chosen, tmp_path, {2: {"reward": 1.0}})
    log_evaluation(chosen, tmp_path, 2, {"pass@8": 0.5})
    [run] = client.search_runs([client.get_experiment_by_name("sums").experiment_id])
    history = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "reward")}
    assert history == {0: 0.25, 1: 0.75, 2: 1.0}
    of_theirs = client.get_metric_history(run.info.run_id, "reward.rewards:score")
    assert [m.step for m in of_theirs] == [0, 1]
    assert math.isnan(of_theirs[1].value)
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "pass_at_8")] == [(2, 0.5)]
    assert run.data.params["rollout.group_size"] == str(chosen.rollout.group_size)
    assert "secret-word" not in str(run.data.params)


class Broken(http.server.BaseHTTPRequestHandler):
    """A tracking server that takes nothing."""

    def do_GET(self) -> None:
        self.send_error(400, "no tracking today")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def broken() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_mlflow_that_is_away_holds_nothing_up_and_is_said_once(
    tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", broken)
    tracker = MLflow(config("learner.mlflow=sums"), tmp_path)
    with capture_logs() as logs:
        began = time.monotonic()
        for step in range(5):
            tracker.log({"reward": 0.5}, step)
        assert time.monotonic() - began < 1.0
        tracker.close()
    assert [entry["event"] for entry in logs] == ["MLflow does not take records; steps.jsonl has them all"]


def test_wandb_offline_keeps_a_run_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    chosen = config("learner.wandb=sums")
    logged(chosen, tmp_path)
    log_evaluation(chosen, tmp_path, 2, {"pass@8": 0.5})
    wandb.teardown()
    [steps], [judged] = (
        list(tmp_path.glob(f"wandb/offline-run-*/run-{name}.wandb"))
        for name in ("tracked", "tracked-evaluation")
    )
    for word in (b"reward/rewards:score", b"0.25", b"0.75", b"NaN"):
        assert word in steps.read_bytes(), word
    assert b"pass@8" in judged.read_bytes()
    assert b"secret-word" not in steps.read_bytes()
