import pytest

from deploy.launch.redis_server import RedisServer


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    """A real Redis of these tests' own; each test uses a run name of its own in it."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url
