"""Trackers of a run's metrics besides its files: always TensorBoard, and Weights & Biases if the
configuration names a project, with the same names.

W&B works without a network with WANDB_MODE=offline. If it is down, it keeps unsent records and does not delay
the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hora_rl.common.config import Config

SECRETS: Any = {"queue": {"url"}, "telemetry": {"on_alert"}}
"""Keys that may hold a password and are not sent."""
EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class Tracker:
    """`log(values, step)` records metrics."""

    log: Callable[[Mapping[str, float], int], None]
    close: Callable[[], None]


def trackers(config: Config, run_dir: Path, start: int = 0, *, evaluation: bool = False) -> list[Tracker]:
    """The trackers of a learner that begins with step `start`, or with `evaluation` those of Pass@K, logged
    by another process.

    Pass@K has a separate TensorBoard folder and W&B run. A learner that starts at step s makes TensorBoard
    purge its folder from s on, and W&B accepts no step below the last one.
    """
    from torch.utils.tensorboard import SummaryWriter

    folder, name = run_dir / "tensorboard", config.run.name
    if evaluation:
        folder, name = folder / EVALUATION, f"{name}-{EVALUATION}"
    board = SummaryWriter(str(folder), purge_step=None if evaluation else start)

    def to_board(values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            board.add_scalar(key, value, step)

    result = [Tracker(to_board, board.close)]
    if config.learner.wandb:
        import wandb

        settings = config.model_dump(mode="json", exclude=SECRETS)
        run = wandb.init(
            project=config.learner.wandb,
            id=name,
            group=config.run.name,
            resume="allow",
            dir=str(run_dir),
            config=settings,
        )
        result.append(Tracker(lambda values, step: run.log(dict(values), step=step), run.finish))
    return result
