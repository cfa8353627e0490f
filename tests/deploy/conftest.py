"""A configuration, cards and a run for the tests of checks and views."""

import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hora_rl.common.config import Config
from hora_rl.common.load import ROOT, from_args
from hora_rl.deploy.checks import machine, memory
from tests.support.checks import H200, Make
from tests.support.synthetic_run import SyntheticRun, config_of, play


@pytest.fixture(autouse=True)
def _enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing large is started here, so tests do not depend on what is free."""
    monkeypatch.setattr(memory, "free_memory", lambda: 2**40)


@pytest.fixture
def config(tmp_path: Path) -> Make:
    def make(**sections: dict[str, object]) -> Config:
        base: dict[str, dict[str, object]] = {
            "run": {"folder": str(tmp_path / "runs")},
            "model": {"path": str(ROOT / "deploy/demo/model"), "dtype": "float32"},
            "data": {"path": "arithmetic", "system": None},
            "rollout": {"max_prompt_tokens": 32, "max_response_tokens": 64},
            "telemetry": {"http_port": 0},
        }
        return from_args({k: {**base.get(k, {}), **sections.get(k, {})} for k in {*base, *sections}})

    return make


@pytest.fixture
def run(redis_url: str, request: pytest.FixtureRequest) -> SyntheticRun:
    """A run with five steps behind it, whose name is the test's own."""
    run = SyntheticRun(redis_url, config_of(f"run{zlib.crc32(request.node.name.encode())}"))
    play(run, 5)
    return run


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`cards(2)`: this machine has two GPUs, as its driver says."""
    return lambda count: monkeypatch.setattr(machine, "gpus", lambda: [H200] * count)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is not free."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        yield taken.getsockname()[1]
