from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve

from actors.verifier import Verifier
from common.config import Config


@pytest.fixture(scope="module")
def handle() -> Iterator[Any]:
    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=2, include_dashboard=False)
    try:
        config = {"model": {"path": "m"}, "data": {"path": "d"}, "reward": {"time_limit_s": 1.0}}
        deployment = serve.deployment(
            Verifier, name="verifier", ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=100
        )
        yield serve.run(
            deployment.bind(Config.model_validate(config).model_dump(mode="json")),
            name="verifier-test",
            route_prefix=None,
        )
    finally:
        serve.shutdown()
        if started:
            ray.shutdown()


def workers() -> list[str]:
    """Worker processes of any pool whose parent is a verifier replica."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
            command, its = (stat.parent / "cmdline").read_text(), Path(f"/proc/{parent}/cmdline").read_text()
        except OSError:
            continue
        if "spawn_main" in command and "ServeReplica:verifier-test" in its:
            found.append(stat.parent.name)
    return found


@pytest.mark.system
def test_a_replica_outlives_hostile_answers_and_leaves_no_process_behind(handle: Any) -> None:
    def ask(answer: str) -> Any:
        return handle.score.remote([("q", f"<think>x</think><answer>{answer}</answer>", r"\frac{3}{7}")])

    assert ask("6/14").result() == [{"format": 1.0, "accuracy": 1.0}]
    hostile = [ask(f"10^{{10^{{{n}}}}}") for n in range(10, 14)]
    assert [h.result() for h in hostile] == [[{"format": 1.0, "accuracy": 0.0}]] * 4
    assert ask("9/21").result() == [{"format": 1.0, "accuracy": 1.0}]
    assert handle.stats.remote().result()["killed"] == 4
    assert len(workers()) == 1
    ask("10^{10^{20}}")
    serve.delete("verifier-test")
    deadline = time.monotonic() + 20
    while workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers() == []
