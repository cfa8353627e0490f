"""Trackers of a run's metrics besides its files: always TensorBoard, and Weights & Biases and MLflow if the
configuration names a project or an experiment. All have one interface and use the same names.

Each works without a network: W&B with WANDB_MODE=offline, MLflow by default, in RUN/mlflow. A service that is
down does not delay the run: W&B keeps unsent records, and a separate thread writes to MLflow.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from hora_rl.common.config import Config

log = structlog.get_logger(__name__)
SECRETS: Any = {"queue": {"url"}, "telemetry": {"on_alert"}}
"""Keys that may hold a password and are not sent."""
CLOSING_S = 30.0
"""How long the end of a run waits for MLflow to accept the remaining records."""
EVALUATION = "evaluation"


def trackers(
    config: Config, run_dir: Path, start: int = 0, *, evaluation: bool = False
) -> list[Board | Wandb | MLflow]:
    """The trackers of a learner that begins with step `start`, or with `evaluation` those of Pass@K, logged
    by another process.

    Pass@K has a separate TensorBoard folder and W&B run. A learner that starts at step s makes TensorBoard
    purge its folder from s on, and W&B accepts no step below the last one.
    """
    name = f"{config.run.name}-{EVALUATION}" if evaluation else config.run.name
    board = run_dir / "tensorboard"
    found: list[Board | Wandb | MLflow] = [Board(board / EVALUATION) if evaluation else Board(board, start)]
    if config.learner.wandb:
        found.append(Wandb(config, run_dir, name))
    if config.learner.mlflow:
        found.append(MLflow(config, run_dir))
    return found


class Board:
    """TensorBoard's files in `folder`; records of steps from `start` on are purged."""

    def __init__(self, folder: Path, start: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=start)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A W&B run with `name` as its id, in the group of the run's name. An existing one is continued."""

    def __init__(self, config: Config, run_dir: Path, name: str) -> None:
        import wandb

        self._run = wandb.init(
            project=config.learner.wandb,
            id=name,
            group=config.run.name,
            resume="allow",
            dir=str(run_dir),
            config=config.model_dump(mode="json", exclude=SECRETS),
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """An MLflow run; the one named in RUN/mlflow-run is continued. MLFLOW_TRACKING_URI is the server, by
    default the folder RUN/mlflow. `length/mean` becomes `length.mean`, because a folder of MLflow cannot hold
    both `reward` and `reward/format`, and `pass@8` becomes `pass_at_8`."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        self._config, self._run_dir = config, run_dir
        self._waiting: queue.Queue[tuple[Mapping[str, float], int, int] | None] = queue.Queue()
        self._said = False
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._waiting.put((dict(values), step, int(1000 * time.time())))

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join(CLOSING_S)
        if self._thread.is_alive():
            self._say(f"{self._waiting.qsize()} records were not sent in {CLOSING_S:g} s")

    def _work(self) -> None:
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        client, run = None, ""
        while (record := self._waiting.get()) is not None:
            try:
                if client is None:
                    client = mlflow_client(self._run_dir)
                    run = _run_id(client, self._config, self._run_dir)
                values, step, milliseconds = record
                named = {n.replace("/", ".").replace("@", "_at_"): value for n, value in values.items()}
                client.log_batch(run, metrics=[Metric(n, v, milliseconds, step) for n, v in named.items()])
                self._said = False
            except (MlflowException, OSError) as error:  # its store, or the network
                self._say(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")

    def _say(self, trouble: str) -> None:
        """Warn once, until records are accepted again."""
        if not self._said:
            self._said = True
            log.warning("MLflow does not take records; steps.jsonl has them all", error=trouble)


def mlflow_client(run_dir: Path) -> Any:
    from mlflow import MlflowClient

    uri = os.environ.get("MLFLOW_TRACKING_URI") or (run_dir / "mlflow").absolute().as_uri()
    if uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowClient(tracking_uri=uri)


def _run_id(client: Any, config: Config, run_dir: Path) -> str:
    """The run of RUN/mlflow-run, or a new one with the configuration as its parameters."""
    kept = run_dir / "mlflow-run"
    if kept.is_file():
        return kept.read_text().strip()
    name = config.learner.mlflow
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name)
    run = str(client.create_run(number, run_name=config.run.name).info.run_id)
    for section, values in config.model_dump(mode="json", exclude=SECRETS).items():
        for key, value in values.items():
            client.log_param(run, f"{section}.{key}", value)
    kept.write_text(f"{run}\n")
    return run
