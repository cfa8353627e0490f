"""Trackers of a run's metrics besides its files: always TensorBoard, and Weights & Biases if the
configuration names a project. Both have one interface and use the same names.

W&B works without a network with WANDB_MODE=offline. If it is down, it keeps unsent records and does not delay
the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hora_rl.common.config import Config

SECRETS: Any = {"queue": {"url"}, "telemetry": {"on_alert"}}
"""Keys that may hold a password and are not sent."""
EVALUATION = "evaluation"


def trackers(
    config: Config, run_dir: Path, start: int = 0, *, evaluation: bool = False
) -> list[Board | Wandb]:
    """The trackers of a learner that begins with step `start`, or with `evaluation` those of Pass@K, logged
    by another process.

    Pass@K has a separate TensorBoard folder and W&B run. A learner that starts at step s makes TensorBoard
    purge its folder from s on, and W&B accepts no step below the last one.
    """
    name = f"{config.run.name}-{EVALUATION}" if evaluation else config.run.name
    board = run_dir / "tensorboard"
    result: list[Board | Wandb] = [Board(board / EVALUATION) if evaluation else Board(board, start)]
    if config.learner.wandb:
        settings = config.model_dump(mode="json", exclude=SECRETS)
        result.append(Wandb(config.learner.wandb, config.run.name, name, run_dir, settings))
    return result


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
    """A W&B run with `name` as its id, in the group `run`. An existing one is continued."""

    def __init__(self, project: str, run: str, name: str, folder: Path, settings: dict[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=project, id=name, group=run, resume="allow", dir=str(folder), config=settings
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
