"""What every test shares: a real Redis server where one is needed, and the environment as it was before."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hora_rl.deploy.machine.redis_server import RedisServer


def pytest_configure() -> None:
    """Let tests end what they start. A process inherits that a signal is ignored, as under nohup and in the
    background of a script; a handler it does not inherit."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What runs the tests that are coroutines (`anyio_mode` in pyproject.toml)."""
    return "asyncio"


@pytest.fixture(autouse=True)
def environment_as_before() -> Iterator[None]:
    """Entry points set variables for good (`LOCAL_RANK`); the next test in this process must not see them."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def process_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one process on the CPU, for the whole session: DeepSpeed remembers the first group of a
    process."""
    import torch

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DS_ACCELERATOR", "cpu")
        environment.setenv("LOCAL_RANK", "0")
        store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of one server for a test file; each test uses a run name of its own in it."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """An empty server of one test, in `tmp_path / "redis"`."""
    with RedisServer(tmp_path / "redis") as server:
        yield server
