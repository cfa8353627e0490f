"""Disk space that a run takes at most, per part with the key that bounds it."""

import shutil
from collections.abc import Iterator
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
    batch = rollout.batch_size
    kept = learner.checkpoint_every * learner.keep_checkpoints + rollout.max_staleness + 1
    of_batch = batch * rollout.max_response_tokens * QUEUED_TOKEN / GIB
    held = min(kept, learner.steps) * of_batch
    queue = min(learner.steps * of_batch, max(REWRITE_GIB, 2 * held)) + held
    lines = learner.steps * (rollout.prompts_per_batch * OF_GROUP + OF_STEP) / GIB
    found = [
        *(_of_model(estimate) if estimate else ()),
        Use("rollouts", expected_gib(rollout, config.telemetry, learner.steps), "telemetry.rollouts_gib"),
        Use("Redis", queue, "learner.checkpoint_every"),
        Use("records", lines),
    ]
    return sorted((use for use in found if use.gib), key=lambda use: -use.gib)


def _of_model(estimate: Estimate) -> Iterator[Use]:
    learner, weights = estimate.config.learner, estimate.weights_gib
    # The kept ones and the one being written.
    checkpoints = (learner.keep_checkpoints + 1) * estimate.checkpoint_gib
    yield Use("checkpoints", checkpoints, "learner.keep_checkpoints")
    yield Use("published weights", 2 * estimate.published_gib)
    yield Use("model", weights)
    # The best, the one under evaluation, the next one, and the one being written.
    yield Use("best weights", 4 * weights * (learner.keep_best is not None), "learner.keep_best")


def disk(target: Target) -> Iterator[Finding]:
    """Whether the disk has room for the run."""
    config, path = target.config, Path(target.config.run.folder).absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    free, found = shutil.disk_usage(existing).free / GIB, estimate_of(config)
    need, words = sum(use.gib for use in uses(config, found)) + SPARE_GIB, in_words(config, found)
    says = f"{words}; {size(SPARE_GIB)} must remain, and {size(free)} are free in {existing}"
    fix = "lower learner.keep_checkpoints or telemetry.rollouts_gib, or set run.folder to a larger disk"
    yield must(free >= need * target.trains, "disk", says, fix)


def forecast(target: Target) -> Iterator[Finding]:
    """Disk space of a run that is meant for another machine."""
    if target.trains:
        yield ok("disk", in_words(target.config, estimate_of(target.config)))


def in_words(config: Config, estimate: Estimate | None) -> str:
    """`200 steps take about 221 GiB at most: checkpoints 159 GiB (learner.keep_checkpoints), …`."""
    found = uses(config, estimate)
    whole = size(sum(use.gib for use in found))
    unknown = "" if estimate else "; the model's size is not known here, and comes on top"
    return f"{config.learner.steps} steps take about {whole} at most: {', '.join(map(str, found))}{unknown}"


def expected_gib(rollout: RolloutConfig, telemetry: TelemetryConfig, steps: int) -> float:
    """Maximal size of RUN/rollouts after `steps`: every completion has the longest allowed length."""
    per_token = OF_TOKEN_WITH_LOGPROBS if telemetry.rollouts_logprobs else OF_TOKEN
    per_rollout = OF_ROW + per_token * rollout.max_response_tokens
    per_step = OF_FILE + rollout.batch_size * per_rollout
    every = steps * per_step / GIB
    return 0.0 if telemetry.rollouts == "none" else min(every, telemetry.rollouts_gib)
