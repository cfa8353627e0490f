"""Publishing by `weights.transport: ipc`: the learner waits for readers alone, and does not import vLLM."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from common.keys import Keys
from common.load import load
from common.redis import connect
from common.shared_buffer import Address, copied, placed, reading
from common.telemetry import heartbeat_now
from deploy.launch.redis_server import RedisServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]  # it imports DeepSpeed
CPU = torch.device("cpu")


class Weights:
    """Stands in for the engine: two tensors whose values are the version."""

    device, hf = CPU, torch.nn.Module()

    def __init__(self) -> None:
        self.tensors = {"a": torch.zeros(4, 4), "b": torch.zeros(7)}

    def whole(self) -> Any:
        return iter(self.tensors.items())

    def step(self, version: int) -> None:
        for tensor in self.tensors.values():
            tensor.fill_(version)


class Replicas:
    """What `BroadcastClient` reaches: replicas by name, with the version of each."""

    def __init__(self, limit_s: float) -> None:
        self.held, self.told = {"generator/a": 0, "generator/b": 0}, list[dict[str, Any]]()
        self.pinned_too = list[bool]()

    def roll_call(self, coming: int, *, pinned: bool) -> dict[str, int]:
        self.pinned_too.append(pinned)
        return dict(self.held)

    def update(self, info: dict[str, Any], version: int) -> None:
        self.told.append(info)
        self.held = dict.fromkeys(self.held, version)

    def confirm(self, version: int) -> list[Any]:
        return [{"version": version, "pause_s": 0.0, "checksum": "x", "checksum_s": 0.0} for _ in self.held]


@pytest.fixture
def made(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Replicas, Weights, Any]:
    """A publisher, the replicas that it reaches, the learner's weights, and a client of its Redis."""
    from learner.weights import publisher

    replicas, weights, client = Replicas(1.0), Weights(), connect(redis_server.url)
    monkeypatch.setattr(publisher, "BroadcastClient", lambda limit_s: replicas)
    config = load(
        "tiny", ["run.name=r", "weights.transport=ipc", "weights.update_limit_s=0.3", "learner.steps=3"]
    )
    return publisher.Publisher(config, cast(Any, weights), client, tmp_path, 0), replicas, weights, client


def read(info: dict[str, Any]) -> dict[str, set[float]]:
    """The values of each tensor, as a replica finds them."""
    own = copied(Address.model_validate(info["address"]), CPU)
    dtypes = [getattr(torch, name) for name in info["dtypes"]]
    places = placed(zip(info["names"], dtypes, info["shapes"], strict=True))
    return {place.name: set(place.of(own).flatten().tolist()) for place in places}


def test_every_version_is_in_the_one_buffer_and_counts_when_it_was_sent(made: Any) -> None:
    publisher, replicas, weights, client = made
    for version in (1, 2, 3):
        weights.step(version)
        publisher.publish(version)
        weights.step(-1)  # the next step changes nothing that was published
        publisher.wait()
        assert client.hget(Keys("r").state, "version") == str(version).encode()
        assert read(replicas.told[-1]) == {"a": {version}, "b": {version}}
    assert len({info["address"]["token"] for info in replicas.told}) == 1
    assert len({info["digest"] for info in replicas.told}) == 3
    assert [info["last"] for info in replicas.told] == replicas.pinned_too == [False, False, True]
    assert publisher.timing.bytes == 4 * (16 + 7)
    publisher.close()


def test_no_replica_is_sent_a_version_while_the_initial_policy_is_measured(made: Any) -> None:
    publisher, replicas, weights, client = made
    client.set(Keys("r").hold, 1)
    weights.step(1)
    publisher.publish(1)
    time.sleep(0.5)
    publisher.refresh()
    assert not replicas.told
    client.delete(Keys("r").hold)
    publisher.wait()
    assert read(replicas.told[-1]) == {"a": {1}, "b": {1}}
    publisher.close()


def test_a_reader_that_does_not_end_stops_the_learner_and_keeps_what_it_reads(made: Any) -> None:
    publisher, replicas, weights, _ = made
    weights.step(1)
    publisher.publish(1)
    publisher.wait()
    with reading(Address.model_validate(replicas.told[-1]["address"]), CPU) as memory:
        before = memory.clone()
        weights.step(2)
        with pytest.raises(TimeoutError, match=r"weights.update_limit_s\); it is not overwritten"):
            publisher.publish(2)
        assert torch.equal(memory, before)
    publisher.publish(2)
    publisher.wait()
    assert read(replicas.told[-1]) == {"a": {2}, "b": {2}}
    publisher.close()


def test_a_replica_that_starts_later_is_told_again_and_others_are_left_alone(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learner.weights import lagging

    publisher, replicas, weights, client = made
    monkeypatch.setattr(lagging, "RESEND_S", 0.0)
    monkeypatch.setattr(lagging, "LAG_S", 0.0)
    weights.step(1)
    publisher.publish(1)
    publisher.wait()
    heartbeat_now(client, "r", "generator/a", {"version": 1})
    publisher.refresh()
    publisher.wait()
    assert len(replicas.told) == 1
    replicas.held["generator/late"] = 0
    heartbeat_now(client, "r", "generator/late", {"version": 0})
    publisher.refresh()
    publisher.wait()
    assert len(replicas.told) == 2
    assert read(replicas.told[-1]) == {"a": {1}, "b": {1}}
    publisher.close()


def test_a_learner_that_repeats_steps_sends_nothing_to_replicas_that_hold_more(made: Any) -> None:
    publisher, replicas, weights, _ = made
    replicas.held = dict.fromkeys(replicas.held, 5)
    weights.step(3)
    publisher.publish(3)
    publisher.wait()
    assert replicas.told == []
    publisher.close()


def test_tensors_in_another_order_are_refused(made: Any) -> None:
    publisher, _, weights, _ = made
    publisher.publish(1)
    publisher.wait()
    weights.tensors = dict(reversed(weights.tensors.items()))
    with pytest.raises(RuntimeError, match="b is where a was"):
        publisher.publish(2)


def test_a_learner_that_shares_weights_never_loads_vllm() -> None:
    script = (
        "import sys, learner.train, learner.weights.shared_transport\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] == 'vllm'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip().splitlines()[-1:] == ["[]"], done.stderr[-2000:]
