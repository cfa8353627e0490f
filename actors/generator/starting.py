"""What a replica does while its engine loads, for the terminal of `hora run`. vLLM loads an engine in one
call, so a thread tells it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from redis.exceptions import RedisError

from hora_rl.actors.generator.failures import stage_now
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect

LOOK_S = 0.5


@contextmanager
def told_while_loading(redis_url: str, run: str, name: str) -> Iterator[None]:
    """Write the engine's stage to `Keys.starting` during the block."""
    client, key, over = connect(redis_url), Keys(run).starting, threading.Event()

    def tell() -> None:
        told = ""
        while not over.wait(LOOK_S):
            if (stage := stage_now()) != told:
                with suppress(RedisError):  # the next stage comes
                    client.hset(key, name, stage)
                told = stage

    telling = threading.Thread(target=tell, name="stage", daemon=True)
    telling.start()
    try:
        yield
    finally:
        over.set()
        telling.join()
        with suppress(RedisError):
            client.hdel(key, name)
        client.close()
