"""Redis for every test that needs one: a real server in a temporary folder, ended with its scope."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.launch.redis_server import RedisServer


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
