"""Publishing over files waits for no replica; versions in memory are whole, sealed, gone with the learner."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from hora_rl.common.errors import StaleWeights
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import ROOT, load
from hora_rl.common.weights.versions import Manifest, check_file, newest_now, path_of
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.learner.weights import file_transport
from hora_rl.learner.weights.broadcast import BroadcastClient
from hora_rl.learner.weights.file_transport import FileTransport
from hora_rl.learner.weights.host_copy import Snapshot
from hora_rl.learner.weights.publisher import Publisher

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]  # it imports DeepSpeed
LAST, SHAPE = 9, (64, 1024)


class Weights:
    """Stands in for the engine: one tensor, whose values are the version."""

    hf, device = torch.nn.Linear(4, 4, bias=False), torch.device("cpu")

    def whole(self) -> Any:
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
    goes_on, told = threading.Event(), list[int]()

    def stands_still(client: BroadcastClient, info: Any, version: int) -> None:
        told.append(version)
        assert goes_on.wait(60)

    monkeypatch.setattr(BroadcastClient, "update", stands_still)
    publisher, client = first_version(redis_server.url, tmp_path)
    while not told:
        time.sleep(0.01)
    for version in (2, 3, 4):
        publisher.publish(version)
    publisher.wait()
    assert newest_now(client, "r").version == 4
    assert client.hget(Keys("r").state, "version") == b"4"
    assert told == [1], "it is still at the first"
    kept = sorted(path.stem for path in (tmp_path / "weights").iterdir())
    assert kept == ["00000001", "00000003", "00000004"], "what it reads stays, and no more pile up"
    goes_on.set()
    publisher.close()
    assert told == [1, 4], "what is newer was out already"


def test_no_version_leaves_the_learner_while_the_initial_policy_is_measured(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[int]()
    monkeypatch.setattr(BroadcastClient, "update", lambda client, info, version: told.append(version))
    held = Keys("r").hold
    connect(redis_server.url).set(held, 1)
    publisher, client = first_version(redis_server.url, tmp_path)
    time.sleep(0.5)
    assert newest_now(client, "r") is None
    assert client.hget(Keys("r").state, "version") is None
    assert not told
    client.delete(held)
    publisher.wait()
    assert client.hget(Keys("r").state, "version") == b"1"
    publisher.close()
    assert told == [1]


def test_what_goes_wrong_when_replicas_are_told_does_not_end_the_learner(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    def fails(client: BroadcastClient, info: Any, version: int) -> None:
        raise ValueError("of Serve's own making")

    monkeypatch.setattr(BroadcastClient, "update", fails)
    publisher, client = first_version(redis_server.url, tmp_path)
    publisher.close()
    assert client.hget(Keys("r").state, "version") == b"1"
    said = capfd.readouterr()
    assert "of Serve's own making" in said.out + said.err


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


def transport(folder: Path, announced: list[Manifest], shared: bool = True) -> FileTransport:
    return FileTransport(folder, "r", "float32", announced.append, None, LAST, lambda: shared)


def snapshot(version: int) -> Snapshot:
    return Snapshot(version, [("w", torch.full(SHAPE, float(version)))], torch.device("cpu"))


def published(files: FileTransport, version: int) -> Manifest:
    manifest = files.write(snapshot(version))
    files.announce(manifest)
    return manifest


def in_memory(manifest: Manifest) -> bool:
    return manifest.path.startswith("/proc/")


def test_a_version_in_memory_is_whole_and_cannot_be_changed(tmp_path: Path) -> None:
    announced = list[Manifest]()
    manifest = published(transport(tmp_path, announced), 1)
    assert announced == [manifest]
    assert in_memory(manifest)
    assert not list(tmp_path.iterdir())
    with check_file(manifest.update_info()) as file:
        assert torch.equal(load_file(path_of(file.fileno()))["w"], torch.ones(SHAPE))
    with pytest.raises(OSError), open(manifest.path, "r+b") as writer:  # noqa: PT011
        os.pwrite(writer.fileno(), b"0", 100)
    with pytest.raises(OSError):  # noqa: PT011
        os.truncate(manifest.path, 10)


def test_older_versions_are_let_go_but_for_those_that_are_read(tmp_path: Path) -> None:
    files, manifests = transport(tmp_path, []), list[Manifest]()
    for version in (1, 2, 3):
        manifests.append(published(files, version))
        if version == 1:
            read = check_file(manifests[0].update_info())
            files._pushed = manifests[0].path
    check_file(manifests[0].update_info()).close()
    with pytest.raises(StaleWeights):
        check_file(manifests[1].update_info())
    files._pushed = ""
    published(files, 4)
    with pytest.raises(StaleWeights):
        check_file(manifests[0].update_info())
    assert torch.equal(load_file(path_of(read.fileno()))["w"], torch.ones(SHAPE)), "who has it open keeps it"
    read.close()


def test_the_last_version_outlives_the_learner_and_replaces_what_was_in_memory(tmp_path: Path) -> None:
    files = transport(tmp_path, [])
    before = published(files, LAST - 1)
    last = published(files, LAST)
    assert in_memory(before)
    assert last.path == str(tmp_path / f"{LAST:08d}.safetensors")
    check_file(last.update_info()).close()
    with pytest.raises(StaleWeights):
        check_file(before.update_info())


def test_several_machines_or_short_memory_get_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_memory(published(transport(tmp_path, [], shared=False), 1))
    needed = 4 * SHAPE[0] * SHAPE[1]
    monkeypatch.setattr(file_transport, "free_memory", lambda: 2 * needed)
    assert not in_memory(published(transport(tmp_path, []), 2)), "as much again must stay free"
    monkeypatch.setattr(file_transport, "free_memory", lambda: 2 * needed + 1024)
    assert in_memory(published(transport(tmp_path, []), 3))


def test_a_version_in_memory_is_sent_to_new_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_transport, "ASK_S", 0.0)
    machines = [1]
    files = FileTransport(tmp_path, "r", "float32", lambda _: None, None, LAST, lambda: len(machines) == 1)
    published(files, 1)
    assert not files.out_of_reach()
    machines.append(2)
    assert files.out_of_reach()
    assert not in_memory(published(files, 1))
    assert not files.out_of_reach()


KILLED = """
import sys, torch
from pathlib import Path
from hora_rl.learner.weights.file_transport import FileTransport
from hora_rl.learner.weights.host_copy import Snapshot
files = FileTransport(Path(sys.argv[1]), "r", "float32", lambda _: None, None, 9, lambda: True)
manifest = files.write(Snapshot(1, [("w", torch.full((64, 1024), 1.0))], torch.device("cpu")))
print(manifest.path, manifest.digest, manifest.bytes, flush=True)
sys.stdin.read()
"""


def test_a_killed_learner_leaves_nothing_and_takes_nothing_from_who_reads(tmp_path: Path) -> None:
    command, pipe = [sys.executable, "-c", KILLED, str(tmp_path)], subprocess.PIPE
    learner = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    path, digest, size = learner.stdout.readline().split()
    info = {"version": 1, "path": path, "digest": digest, "bytes": int(size)}
    with check_file(info) as file:
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        assert torch.equal(load_file(path_of(file.fileno()))["w"], torch.ones(SHAPE))
    with pytest.raises(StaleWeights):
        check_file(info)
    assert not list(tmp_path.iterdir())
