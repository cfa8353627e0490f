"""The learner's records: one line per trained group and per step, in JSONL, in the trackers (TensorBoard, and
Weights & Biases if the configuration names a project), and in Redis for the live views. All use the same
names, also for Pass@K.

W&B works without a network with WANDB_MODE=offline. If it is down, it keeps unsent records and does not delay
the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from hora_rl.common.config import Config
from hora_rl.common.data.rewards import total
from hora_rl.common.files import replacing, sync
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import LOOKS, count_now, record_step
from hora_rl.common.records import GroupRecord
from hora_rl.common.types import Group
from hora_rl.learner.records.rollout_writer import RolloutFiles

SECRETS: Any = {"queue": {"url"}, "telemetry": {"on_alert"}}
"""Keys that may hold a password and are not sent."""
EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class Tracker:
    log: Callable[[Mapping[str, float], int], None]
    close: Callable[[], None]


def trackers(config: Config, run_dir: Path, start: int = 0, *, evaluation: bool = False) -> list[Tracker]:
    """The trackers of a learner that begins with step `start`, or with `evaluation` those of Pass@K, which
    have a separate TensorBoard folder and W&B run. TensorBoard purges its folder from `start` on, and W&B
    accepts no step below the last one."""
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


class Records:
    """Rank 0's files in `run_dir`, without lines of steps from `start` on. `rollouts`: None writes none."""

    def __init__(
        self,
        config: Config,
        client: redis.Redis,
        run_dir: Path,
        start: int,
        rollouts: RolloutFiles | None = None,
    ) -> None:
        self._config, self._redis, self._rollouts = config, client, rollouts
        self._groups, self._steps = run_dir / "groups.jsonl", run_dir / "steps.jsonl"
        for path in (self._groups, self._steps):
            cut_from(path, start)
        self._trackers = trackers(config, run_dir, start)
        self._looks: tuple[int, int] | None = None
        self.newest: Mapping[str, float] = {}
        """Metrics of the newest step since the start."""

    def idle(self) -> dict[str, float]:
        """`generators/idle`: share of the time since the last call without a request; empty at the first."""
        counters = self._redis.hmget(Keys(self._config.run.name).counters, LOOKS)
        before, self._looks = self._looks, (int(counters[0] or 0), int(counters[1] or 0))
        if before is None or self._looks[0] == before[0]:
            return {}
        return {"generators/idle": (self._looks[1] - before[1]) / (self._looks[0] - before[0])}

    def step(
        self,
        step: int,
        groups: Sequence[GroupRecord],
        metrics: Mapping[str, float],
        trained: Sequence[Group] = (),
    ) -> None:
        """Write one step: the records of all Γ groups, and the `trained` groups themselves."""
        if self._rollouts is not None:
            self._rollouts.write(step, trained)
        self.newest = metrics
        _append(self._groups, groups)
        _append(self._steps, [dict(metrics)])
        for tracker in self._trackers:
            tracker.log(metrics, step)
        name = self._config.run.name
        record_step(self._redis, name, metrics)
        out = {
            "groups_out": len(groups),
            "rollouts_out": sum(g["size"] for g in groups),
            "tokens_out": sum(g["tokens"] for g in groups),
        }
        count_now(self._redis, name, out)
        self._redis.hset(Keys(name).state, mapping=changed(step=step + 1))

    def sync(self) -> None:
        """Before a checkpoint: steps that a checkpoint contains are not written again."""
        if self._rollouts is not None:
            self._rollouts.flush()
        sync(*(path for path in (self._groups, self._steps) if path.exists()))

    def close(self) -> None:
        if self._rollouts is not None:
            self._rollouts.close()
        for tracker in self._trackers:
            tracker.close()


def log_evaluation(config: Config, run_dir: Path, version: int, values: Mapping[str, float]) -> None:
    """Log Pass@K of weight version `version` to every tracker, as `pass@1` and so on."""
    for tracker in trackers(config, run_dir, evaluation=True):
        tracker.log(values, version)
        tracker.close()


def group_record(step: int, group: Group, config: Config) -> GroupRecord:
    rollouts, old_new, reward = group.rollouts, group.versions, config.of(group.source).reward
    n = len(rollouts)
    record: GroupRecord = {
        "step": step,
        "batch": group.batch,
        "shard": group.shard,
        "epoch": group.epoch,
        "prompt_index": group.prompt_index,
        "group_id": group.id,
        "rule": group.rule,
        "prior": config.allocation.prior,
        "prior_alpha": group.prior[0],
        "prior_beta": group.prior[1],
        "trials": group.pre_rollouts,
        "successes": group.successes,
        "extra": group.extra,
        "rounds": list(group.rounds),
        "round_hits": list(group.round_hits),
        "size": n,
        "hits": group.hits,
        "tokens": group.tokens,
        "reward_mean": sum(total(r.rewards, reward.weights) for r in rollouts) / n,
        "rewards": {name: sum(r.rewards[name] for r in rollouts) / n for name in reward.names},
        "length_mean": group.tokens / n,
        "version_min": old_new[0],
        "version_max": old_new[1],
        "mixed_phases": group.mixed_phases,
    }
    if group.source:
        record["source"] = group.source
    if config.environment.path is not None:
        record["turns"] = sum(len(r.turns) or 1 for r in rollouts)
        record["context_tokens"] = sum(r.context_tokens for r in rollouts)
    return record


def cut_from(path: Path, step: int) -> None:
    """Remove the lines of steps >= `step` and a torn last line; the coming steps write them again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        if record["step"] < step:
            kept.append(line)
    with replacing(path) as new:
        new.write_text("".join(f"{line}\n" for line in kept))
        sync(new)


def _append(path: Path, records: Sequence[Mapping[str, object]]) -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(r) + "\n" for r in records))
