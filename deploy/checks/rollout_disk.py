"""How much of the disk RUN/rollouts will take, said before the run."""

from __future__ import annotations

from collections.abc import Iterator

from hora_rl.common.config import Config, Rollout, Telemetry
from hora_rl.deploy.checks.findings import Finding, Target, ok, size

GIB = 2**30
# Bytes of files of 640 rollouts of 2,000 tokens of English, and of short ones; rounded up.
OF_FILE, OF_ROW, OF_TOKEN, OF_TOKEN_WITH_LOGPROBS = 24 * 2**10, 80, 2.0, 6.0


def expected_gib(config: Config) -> float:
    """The most that this run's files should take: every completion as long as it may be."""
    rollout, telemetry = config.rollout, config.telemetry
    per_token = OF_TOKEN_WITH_LOGPROBS if telemetry.rollouts_logprobs else OF_TOKEN
    per_rollout = OF_ROW + per_token * rollout.max_response_tokens
    every = (config.learner.steps * OF_FILE + rollouts_of(config.learner.steps, rollout) * per_rollout) / GIB
    return min(every * share(telemetry), telemetry.rollouts_gib)


def rollouts_of(steps: int, rollout: Rollout) -> int:
    """steps·Γ·G."""
    return steps * rollout.prompts_per_batch * rollout.group_size


def share(telemetry: Telemetry) -> float:
    return {"all": 1.0, "sample": telemetry.rollouts_share, "none": 0.0}[telemetry.rollouts]


def rollouts(target: Target) -> Iterator[Finding]:
    """What RUN/rollouts will hold and its size."""
    if not target.trains:
        return
    config, telemetry = target.config, target.config.telemetry
    if not (kept := share(telemetry)):
        yield ok("rollouts", "none are kept (telemetry.rollouts)")
        return
    folder = config.run.path / "rollouts"
    number = rollouts_of(config.learner.steps, config.rollout)
    which = f"all {number:,}" if kept == 1 else f"those of {kept:.3g} of the prompts"
    logprobs = " with log-probs" if telemetry.rollouts_logprobs else ""
    need = expected_gib(config)
    if need >= telemetry.rollouts_gib:
        bound = f"the newest {need:g} GiB; files of older steps go (telemetry.rollouts_gib)"
    else:
        bound = f"at most about {size(need)}"
    yield ok("rollouts", f"{which}{logprobs} in {folder}, {bound}")
