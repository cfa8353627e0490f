"""Versions over `file` that lie in memory: whole, sealed, and gone with the learner."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hora_rl.common.errors import StaleWeights
from hora_rl.common.weights.versions import Manifest, check_file, path_of
from hora_rl.learner.weights import file_transport
from hora_rl.learner.weights.file_transport import FileTransport
from hora_rl.learner.weights.host_copy import Snapshot

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]  # it imports DeepSpeed
LAST = 9
SHAPE = (64, 1024)


def transport(folder: Path, announced: list[Manifest], shared: bool = True) -> FileTransport:
    nobody: Any = None
    return FileTransport(folder, "r", "float32", announced.append, nobody, LAST, lambda: shared)


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


def test_several_machines_and_short_memory_get_files_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not in_memory(published(transport(tmp_path, [], shared=False), 1))
    needed = 4 * SHAPE[0] * SHAPE[1]
    monkeypatch.setattr(file_transport, "free_memory", lambda: 2 * needed)
    assert not in_memory(published(transport(tmp_path, []), 2)), "as much again must stay free"
    monkeypatch.setattr(file_transport, "free_memory", lambda: 2 * needed + 1024)
    assert in_memory(published(transport(tmp_path, []), 3))


def test_a_version_in_memory_is_published_again_once_another_machine_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_transport, "ASK_S", 0.0)
    machines = [1]
    nobody: Any = None
    files = FileTransport(tmp_path, "r", "float32", lambda _: None, nobody, LAST, lambda: len(machines) == 1)
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
    learner = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert learner.stdout is not None
    path, digest, size = learner.stdout.readline().split()
    info = {"version": 1, "path": path, "digest": digest, "bytes": int(size)}
    with check_file(info) as file:
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        assert torch.equal(load_file(path_of(file.fileno()))["w"], torch.ones(SHAPE))
    with pytest.raises(StaleWeights):
        check_file(info)
    assert not list(tmp_path.iterdir())
