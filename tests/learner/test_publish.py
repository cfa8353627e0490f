"""Publishing over files waits for no replica, and a version is gathered where replicas read it."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import ROOT, load
from hora_rl.common.weights.announcement import BroadcastClient, check_file, newest_now, path_of
from hora_rl.common.weights.file_receiver import mapped
from hora_rl.common.weights.file_sender import FileTransport
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.learner.weights.host_copy import HostCopy
from hora_rl.learner.weights.publisher import Publisher
from tests.common.test_file_transport import transport
from tests.support.adapters import policy_with_adapter
from tests.support.adapters import published as published_adapter

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]  # it imports DeepSpeed


class Weights:
    """Stands in for the engine: one tensor, whose values are the version."""

    hf, device = torch.nn.Linear(4, 4, bias=False), torch.device("cpu")

    def published(self) -> Any:
        return iter([("weight", self.hf.weight.detach())])


def first_version(url: str, folder: Path) -> tuple[Any, Any]:
    """(publisher that has published version 1, client of its Redis)."""
    client, engine = connect(url), cast(Any, Weights())
    publisher = Publisher(load("tiny", ["run.name=r"]), engine, client, folder, rank=0)
    publisher.publish(1)
    return publisher, client


def test_a_replica_that_stands_still_keeps_neither_the_learner_nor_the_next_version(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, calls = threading.Event(), list[int]()

    def stands_still(client: BroadcastClient, info: Any, version: int) -> None:
        calls.append(version)
        assert goes_on.wait(60)

    monkeypatch.setattr(BroadcastClient, "update", stands_still)
    publisher, client = first_version(redis_server.url, tmp_path)
    while not calls:
        time.sleep(0.01)
    for version in (2, 3, 4):
        publisher.publish(version)
    publisher.wait()
    assert newest_now(client, "r").version == 4
    assert client.hget(Keys("r").state, "version") == b"4"
    assert calls == [1], "it is still at the first"
    kept = sorted(path.stem for path in (tmp_path / "weights").iterdir())
    assert kept == ["00000001", "00000003", "00000004"], "what it reads stays, and no more pile up"
    goes_on.set()
    publisher.close()
    assert calls == [1, 4], "what is newer was out already"


def test_no_version_leaves_the_learner_while_the_initial_policy_is_measured(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()
    monkeypatch.setattr(BroadcastClient, "update", lambda client, info, version: calls.append(version))
    held = Keys("r").hold
    connect(redis_server.url).set(held, 1)
    publisher, client = first_version(redis_server.url, tmp_path)
    time.sleep(0.5)
    assert newest_now(client, "r") is None
    assert client.hget(Keys("r").state, "version") is None
    assert not calls
    client.delete(held)
    publisher.wait()
    assert client.hget(Keys("r").state, "version") == b"1"
    publisher.close()
    assert calls == [1]


def test_what_goes_wrong_when_replicas_are_told_does_not_end_the_learner(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    def fails(client: BroadcastClient, info: Any, version: int) -> None:
        raise ValueError("of Serve's own making")

    monkeypatch.setattr(BroadcastClient, "update", fails)
    publisher, client = first_version(redis_server.url, tmp_path)
    publisher.close()
    assert client.hget(Keys("r").state, "version") == b"1"
    text = capfd.readouterr()
    assert "of Serve's own making" in text.out + text.err


def test_the_next_step_waits_for_no_file_and_does_not_change_what_is_written(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, write = threading.Event(), FileTransport.write

    def slow(*arguments: Any) -> Any:
        assert goes_on.wait(60)
        return write(*arguments)

    publisher, client = first_version(redis_server.url, tmp_path)
    publisher.wait()
    monkeypatch.setattr(FileTransport, "write", slow)
    with torch.no_grad():
        Weights.hf.weight.fill_(2.0)
        publisher.publish(2)  # returns while the disk has nothing
        Weights.hf.weight.fill_(3.0)  # the optimizer's next step
    assert client.hget(Keys("r").state, "version") == b"1"
    goes_on.set()
    publisher.close()
    assert client.hget(Keys("r").state, "version") == b"2"
    written = load_file(tmp_path / "weights" / "00000002.safetensors")
    assert torch.equal(written["weight"], torch.full((4, 4), 2.0))


OVER_FILES = """
import sys
from pathlib import Path
import hora_rl.learner.train
from hora_rl.common.load import load
from hora_rl.learner.weights.publisher import Publisher
from tests.learner.test_publish import Weights
Publisher(load("tiny"), Weights(), None, Path(), 0).close()
sys.exit("vllm" in sys.modules)
"""


def test_a_learner_that_publishes_files_never_loads_vllm() -> None:
    assert subprocess.run([sys.executable, "-c", OVER_FILES], cwd=ROOT, timeout=100).returncode == 0


def test_files_of_a_lost_run_cost_no_announced_version(tmp_path: Path, redis_server: RedisServer) -> None:
    """Its files have higher versions: Redis was lost before the first checkpoint."""
    weights = tmp_path / "weights"
    weights.mkdir()
    for version in (7, 8):
        (weights / f"{version:08d}.safetensors").write_bytes(b"of the lost run")
    publisher, client = first_version(redis_server.url, tmp_path)
    publisher.wait()
    assert newest_now(client, "r") is not None
    assert [path.name for path in sorted(weights.iterdir())] == ["00000001.safetensors"]
    publisher.close()


def test_a_version_is_gathered_where_replicas_read_it(tmp_path: Path) -> None:
    files = transport(tmp_path, [])
    for version in (1, 2, 3):
        Weights.hf.weight.data.fill_(version)
        weights: Any = HostCopy(cast(Any, Weights()), 0, files.room).snapshot(version, Weights.device)
        manifest = files.write(weights)
        files.announce(manifest)
        Weights.hf.weight.data.fill_(99)  # the optimizer's next step
        with check_file(manifest.update_info()) as file:
            assert torch.equal(load_file(path_of(file.fileno()))["weight"], torch.full((4, 4), version * 1.0))


def test_an_adapter_is_gathered_by_the_names_of_its_file(tmp_path: Path) -> None:
    policy = policy_with_adapter(load("tiny", ["learner.lora.rank=8", "learner.lora.alpha=16"]), 1)
    expected, files = published_adapter(policy), transport(tmp_path, [])
    stand_in: Any = SimpleNamespace(hf=policy.hf, device=Weights.device, published=lambda: expected.items())
    weights: Any = HostCopy(stand_in, 0, files.room).snapshot(1, Weights.device)
    with check_file(files.write(weights).update_info()) as file:
        result = dict(mapped(path_of(file.fileno())))
    assert result.keys() == expected.keys()
    assert all(torch.equal(result[name], expected[name]) for name in expected)
