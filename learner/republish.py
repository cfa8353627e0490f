"""Republishes weights that replicas lack: at a start, and after a file was found damaged."""

from __future__ import annotations

import structlog

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.state import read_state
from hora_rl.common.weights.versions import advance, available
from hora_rl.learner.parts import Parts

log = structlog.get_logger(__name__)


def publish_newest(parts: Parts, start: int) -> None:
    """Publish the weights after `start` steps if replicas lack them. A collective."""
    config, client, agree = parts.config, parts.redis, parts.engine.agree
    run, transport = config.run.name, config.weights.transport
    parts.published = agree(available(client, run, transport) if parts.rank == 0 else 0)
    parts.republished = agree(read_state(client, run).republished)
    if parts.rank == 0:
        # The learner before this one may have died between announcing a version and recording that.
        advance(client, run, parts.published)
    if parts.published < start:
        parts.publisher.publish(start)
        parts.publisher.wait()
        parts.published = start


def help_replicas(parts: Parts, step: int) -> None:
    """Send the weights of version `step` to replicas that lack them. For rank 0 only."""
    parts.publisher.refresh()
    if parts.publisher.is_damaged():
        log.error("a replica found the newest weights damaged; publishing them again", version=step)
        # A number, not an increment: a command whose answer is lost is sent again.
        number = parts.republished + 1
        parts.redis.hset(Keys(parts.config.run.name).state, "republished", str(number))
        _publish_again(parts, step, number)


def publish_with_rank_0(parts: Parts, step: int) -> None:
    """Publish again together with rank 0, which also waits for groups of step `step`: gathering is a
    collective."""
    number = read_state(parts.redis, parts.config.run.name).republished
    if number > parts.republished:
        _publish_again(parts, step, number)


def _publish_again(parts: Parts, step: int, number: int) -> None:
    parts.republished = number
    parts.publisher.publish(step)
    parts.publisher.wait()
    parts.published = step  # a newer version is published again when its step is repeated
