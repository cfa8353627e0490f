"""Disk space that a run takes at most, per part with the key that bounds it."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hora_rl.common.config import Config, RolloutConfig, TelemetryConfig
from hora_rl.deploy.checks.estimate import GIB, Estimate
from hora_rl.deploy.checks.findings import Finding, Target, must, ok, size
from hora_rl.deploy.checks.memory import estimate_of

# Bytes of one line of groups.jsonl, and of a step in steps.jsonl and TensorBoard; rounded up.
OF_GROUP, OF_STEP = 1024, 8192
# Bytes of files of 640 rollouts of 2,000 tokens of English, and of short ones; rounded up.
OF_FILE, OF_ROW, OF_TOKEN, OF_TOKEN_WITH_LOGPROBS = 24 * 2**10, 80, 2.0, 6.0
SPARE_GIB = 1.0
"""Reserved for other writers."""
QUEUED_TOKEN = 8
"""Bytes of a token in Redis: the token and its log-prob."""
REWRITE_GIB = 2.0
"""Redis rewrites its append-only file at this size, or at twice the live data, and briefly keeps both files
(`deploy/machine/redis_server.py`)."""


@dataclass(frozen=True, slots=True)
class Use:
    """A part of the run folder, its maximal size in GiB, and the key that bounds it, if any."""

    what: str
    gib: float
    key: str = ""

    def __str__(self) -> str:
        return f"{self.what} {size(self.gib)}" + (f" ({self.key})" if self.key else "")


def uses(config: Config, estimate: Estimate | None) -> list[Use]:
    """Parts that the run writes, largest first. Without an estimate, only those independent of the model."""
    learner, rollout = config.learner, config.rollout
    batch_gib = rollout.batch_size * rollout.max_response_tokens * QUEUED_TOKEN / GIB
    kept_steps = learner.checkpoint_every * learner.keep_checkpoints + rollout.max_staleness + 1
    held = min(kept_steps, learner.steps) * batch_gib
    queue = min(learner.steps * batch_gib, max(REWRITE_GIB, 2 * held)) + held
    records = learner.steps * (rollout.prompts_per_batch * OF_GROUP + OF_STEP) / GIB
    rollouts = expected_gib(rollout, config.telemetry, learner.steps)
    parts = [("rollouts", rollouts, "telemetry.rollouts_gib"), ("records", records, "")]
    parts.append(("Redis", queue, "learner.checkpoint_every"))
    if estimate is not None:
        weights = estimate.weights_gib
        # The kept checkpoints and the one being written; the best weights, those under evaluation, the next
        # ones, and those being written.
        checkpoints = (learner.keep_checkpoints + 1) * estimate.checkpoint_gib
        best = 4 * weights * (learner.keep_best is not None)
        parts += [
            ("checkpoints", checkpoints, "learner.keep_checkpoints"),
            ("published weights", 2 * estimate.published_gib, ""),
            ("model", weights, ""),
            ("best weights", best, "learner.keep_best"),
        ]
    return sorted((Use(*part) for part in parts if part[1]), key=lambda use: -use.gib)


def disk(target: Target) -> Iterator[Finding]:
    """Whether the disk has room for the run."""
    config, path = target.config, Path(target.config.run.folder).absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    free, estimate = shutil.disk_usage(existing).free / GIB, estimate_of(config)
    parts = uses(config, estimate)
    need = sum(use.gib for use in parts) + SPARE_GIB
    words = in_words(config.learner.steps, parts, complete=estimate is not None)
    says = f"{words}; {size(SPARE_GIB)} must remain, and {size(free)} are free in {existing}"
    fix = "lower learner.keep_checkpoints or telemetry.rollouts_gib, or set run.folder to a larger disk"
    yield must(free >= need * target.trains, "disk", says, fix)


def forecast(target: Target) -> Iterator[Finding]:
    """Disk space of a run that is meant for another machine."""
    if target.trains:
        estimate = estimate_of(target.config)
        parts = uses(target.config, estimate)
        yield ok("disk", in_words(target.config.learner.steps, parts, complete=estimate is not None))


def in_words(steps: int, parts: Sequence[Use], *, complete: bool) -> str:
    """`200 steps take about 221 GiB at most: checkpoints 159 GiB (learner.keep_checkpoints), …`."""
    total = size(sum(use.gib for use in parts))
    unknown = "" if complete else "; the model's size is not known here, and comes on top"
    return f"{steps} steps take about {total} at most: {', '.join(map(str, parts))}{unknown}"


def expected_gib(rollout: RolloutConfig, telemetry: TelemetryConfig, steps: int) -> float:
    """Maximal size of RUN/rollouts after `steps`: every completion has the longest allowed length."""
    if telemetry.rollouts == "none":
        return 0.0
    per_token = OF_TOKEN_WITH_LOGPROBS if telemetry.rollouts == "logprobs" else OF_TOKEN
    per_rollout = OF_ROW + per_token * rollout.max_response_tokens
    return min(steps * (OF_FILE + rollout.batch_size * per_rollout) / GIB, telemetry.rollouts_gib)
