"""Ray and Serve of this machine, for tests of one deployment: on free ports, and gone with the block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import serve

from hora_rl.deploy.machine.ports import free_port


@contextmanager
def local_serve(**ray_options: Any) -> Iterator[str]:
    """Yields Serve's URL."""
    port = free_port()
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=100 * 2**20,
        **ray_options,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
    finally:
        ray.shutdown()
