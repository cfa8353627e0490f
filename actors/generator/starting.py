"""Heartbeats of an engine that loads, with its stage. vLLM loads it in one call, so a thread writes them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from redis.exceptions import RedisError

from hora_rl.actors.generator.failures import stage_now
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.telemetry import ENGINE, HEARTBEAT_S, heartbeat_now


@contextmanager
def stage_shown(redis_url: str, run: str, name: str) -> Iterator[None]:
    """Write heartbeats of the engine `name` with its stage during the block."""
    client, part, over = connect(redis_url), f"{ENGINE}/{name}", threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT_S):
            with suppress(RedisError):  # the next one follows
                heartbeat_now(client, run, part, {"state": stage_now()})

    beating = threading.Thread(target=beat, name="stage", daemon=True)
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join()
        with suppress(RedisError):
            client.hdel(Keys(run).parts, part)
        client.close()
