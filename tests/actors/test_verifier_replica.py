import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve

from hora_rl.actors.verifier.deployment import Verifier
from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect

RUN = "judged"


@pytest.fixture(scope="module")
def handle(redis_url: str) -> Iterator[Any]:
    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=2, include_dashboard=False)
    try:
        config = {
            "run": {"name": RUN},
            "model": {"path": "m"},
            "data": {"path": "d"},
            "reward": {"time_limit_s": 1.0},
            "verifier": {"processes": 1},
        }
        deployment = serve.deployment(
            Verifier, name="verifier", ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=100
        )
        yield serve.run(
            deployment.bind(Config.model_validate(config).model_dump(mode="json"), redis_url),
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


def beat_with(url: str, **wanted: int) -> dict[str, Any]:
    """The replica's heartbeat, once it says `wanted`."""
    client: Any = connect(url)
    deadline = time.monotonic() + 10
    while True:
        ((name, text),) = client.hgetall(Keys(RUN).parts).items()
        assert name.startswith(b"verifier/")
        told: dict[str, Any] = json.loads(text)
        if all(told[k] == v for k, v in wanted.items()):
            return told
        assert time.monotonic() < deadline, (wanted, told)
        time.sleep(0.05)


@pytest.mark.system
def test_a_replica_outlives_hostile_answers_and_leaves_no_process_behind(handle: Any, redis_url: str) -> None:
    def ask(answer: str, gold: str = r"\frac{3}{7}") -> Any:
        return handle.score.remote([("q", f"<think>x</think><answer>{answer}</answer>", gold)])

    def endless(n: int) -> Any:
        series = r"\sum_{n=1}^{\infty}\frac{\cos %d n}{n^2}"
        return ask(series % n, gold=series % 99)

    assert ask("6/14").result() == [{"format": 1.0, "accuracy": 1.0}]
    hostile = [endless(n) for n in range(10, 14)]
    assert [h.result() for h in hostile] == [[{"format": 1.0, "accuracy": 0.0}]] * 4
    assert ask("9/21").result() == [{"format": 1.0, "accuracy": 1.0}]
    assert handle.stats.remote().result()["killed"] == 4
    told = beat_with(redis_url, scored=6)
    assert (told["killed"], told["waiting"], told["processes"], told["state"]) == (4, 0, 1, "serving")
    assert "ServeReplica:verifier-test" in Path(f"/proc/{told['pid']}/cmdline").read_text()
    slow = endless(15)
    assert beat_with(redis_url, waiting=1)["answers_per_s"] >= 0.0
    slow.result()
    assert beat_with(redis_url, waiting=0, scored=7)["killed"] == 5
    assert len(workers()) == 1
    endless(20)
    serve.delete("verifier-test")
    deadline = time.monotonic() + 20
    while workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers() == []
