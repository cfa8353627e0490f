"""Disk space that a run takes at most, per part with the key that bounds it."""

import shutil
from collections.abc import Iterator
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


LIMITS = {
    "rollouts": "telemetry.rollouts_gib",
    "Redis": "learner.checkpoint_every",
    "checkpoints": "learner.keep_checkpoints",
    "best weights": "learner.keep_best",
}
"""The keys that bound parts of the run folder."""


def uses(config: Config, estimate: Estimate | None) -> dict[str, float]:
    """GiB that the run writes at most, by part. Without an estimate, only parts independent of the model."""
    learner, rollout = config.learner, config.rollout
    batch_gib = rollout.batch_size * rollout.max_response_tokens * QUEUED_TOKEN / GIB
    kept_steps = learner.checkpoint_every * learner.keep_checkpoints + rollout.max_staleness + 1
    held = min(kept_steps, learner.steps) * batch_gib
    parts = {
        "rollouts": expected_gib(rollout, config.telemetry, learner.steps),
        "records": learner.steps * (rollout.prompts_per_batch * OF_GROUP + OF_STEP) / GIB,
        "Redis": min(learner.steps * batch_gib, max(REWRITE_GIB, 2 * held)) + held,
    }
    if estimate is not None:
        # The kept checkpoints and the one being written; the best weights, those under evaluation, the next
        # ones, and those being written.
        parts |= {
            "checkpoints": (learner.keep_checkpoints + 1) * estimate.checkpoint_gib,
            "published weights": 2 * estimate.published_gib,
            "model": estimate.weights_gib,
            "best weights": 4 * estimate.weights_gib * (learner.keep_best is not None),
        }
    return {part: gib for part, gib in parts.items() if gib}


def disk(target: Target) -> Iterator[Finding]:
    """Whether the disk has room for the run."""
    path = Path(target.config.run.folder).absolute()
    existing = next(p for p in (path, *path.parents) if p.exists())
    estimate = estimate_of(target.config)
    parts = uses(target.config, estimate)
    largest, need = sorted(parts.items(), key=lambda item: -item[1]), sum(parts.values())
    named = (
        f"{part} {size(gib)}" + (f" ({LIMITS[part]})" if part in LIMITS else "") for part, gib in largest
    )
    unknown = "" if estimate else "; the model's size is not known here, and comes on top"
    steps = target.config.learner.steps
    says = f"{steps} steps take about {size(need)} at most: {', '.join(named)}{unknown}"
    if target.command == "elsewhere":
        yield ok("disk", says)
        return
    free = shutil.disk_usage(existing).free / GIB
    says += f"; {size(SPARE_GIB)} must remain, and {size(free)} are free in {existing}"
    fix = "lower learner.keep_checkpoints or telemetry.rollouts_gib, or set run.folder to a larger disk"
    yield must(not target.trains or free >= need + SPARE_GIB, "disk", says, fix)


def expected_gib(rollout: RolloutConfig, telemetry: TelemetryConfig, steps: int) -> float:
    """Maximal size of RUN/rollouts after `steps`: every completion has the longest allowed length."""
    if telemetry.rollouts == "none":
        return 0.0
    per_token = OF_TOKEN_WITH_LOGPROBS if telemetry.rollouts == "logprobs" else OF_TOKEN
    per_rollout = OF_ROW + per_token * rollout.max_response_tokens
    return min(steps * (OF_FILE + rollout.batch_size * per_rollout) / GIB, telemetry.rollouts_gib)
