"""Versions in files: in memory they are whole, sealed, and gone with the learner."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from hora_rl.common.errors import DamagedWeights, StaleWeights
from hora_rl.common.weights import file_sender
from hora_rl.common.weights.announcement import Manifest, check_file, path_of
from hora_rl.common.weights.file_receiver import mapped
from hora_rl.common.weights.file_sender import FileTransport
from hora_rl.common.weights.host_memory import Snapshot

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
LAST, SHAPE = 9, (64, 1024)


def transport(folder: Path, announced: list[Manifest], shared: bool = True) -> FileTransport:
    return FileTransport(folder, "r", announced.append, None, LAST, lambda: shared)


def snapshot(version: int) -> Snapshot:
    return Snapshot(version, [("w", torch.full(SHAPE, float(version)))], torch.device("cpu"))


def published(files: FileTransport, version: int) -> Manifest:
    manifest = files.write(snapshot(version))
    files.announce(manifest)
    return manifest


def in_memory(manifest: Manifest) -> bool:
    return manifest.path.startswith("/proc/")


def loaded(file: Any) -> torch.Tensor:
    """What a worker reads of a file that a replica has open."""
    return dict(mapped(path_of(file.fileno())))["w"]


def test_a_version_in_memory_is_whole_and_its_size_is_fixed(tmp_path: Path) -> None:
    announced = list[Manifest]()
    manifest = published(transport(tmp_path, announced), 1)
    assert announced == [manifest]
    assert in_memory(manifest)
    assert not list(tmp_path.iterdir())
    with check_file(manifest.update_info()) as file:
        assert torch.equal(load_file(path_of(file.fileno()))["w"], torch.ones(SHAPE))
        assert torch.equal(loaded(file), torch.ones(SHAPE))
    for size in (10, manifest.bytes + 10):
        with pytest.raises(OSError):  # noqa: PT011
            os.truncate(manifest.path, size)  # a mapping would end in SIGBUS


def test_memory_is_used_again_and_a_replica_keeps_the_version_that_it_reads(tmp_path: Path) -> None:
    files, manifests, places = transport(tmp_path, []), list[Manifest](), set[int]()
    for version in range(1, 9):
        manifests.append(published(files, version))
        places.add(os.stat(manifests[-1].path).st_ino)
        if version == 2:
            slow = check_file(manifests[1].update_info())
            kept = loaded(slow)
            slow.close()  # the mapping alone holds it
        if version >= 4:
            with pytest.raises(StaleWeights):
                check_file(manifests[0].update_info())
    assert len(places) == 3, "two in turn, and one more for the slow replica"
    assert torch.equal(kept, torch.full(SHAPE, 2.0)), "no newer version is in what it reads"
    assert len(files._memory._files) == 2, "the kernel frees the third after its reader"
    with check_file(manifests[-1].update_info()) as file:
        assert torch.equal(loaded(file), torch.full(SHAPE, 8.0))


def test_replicas_find_the_version_they_were_sent_although_newer_ones_come(tmp_path: Path) -> None:
    files = transport(tmp_path, [])
    pushed = published(files, 1)
    files._pushed = pushed.path
    for version in (2, 3, 4, 5):
        published(files, version)
    check_file(pushed.update_info()).close()


def test_nobody_reads_what_is_being_written(tmp_path: Path) -> None:
    files = transport(tmp_path, [])
    old = published(files, 1)
    published(files, 2)
    opened = open(old.path, "rb")  # noqa: SIM115  before the learner takes it, and not locked yet
    memory = files.room(snapshot(3).shapes())
    assert memory.path == old.path
    memory.tensors["w"][: SHAPE[0] // 2] = 3.0
    for path in (old.path, path_of(opened.fileno())):
        with pytest.raises(StaleWeights):
            check_file({**old.update_info(), "path": path})
        with pytest.raises(StaleWeights):
            mapped(path)
    memory.finish(3)
    with pytest.raises(StaleWeights, match="newer"):
        check_file(old.update_info())
    opened.close()


def test_replicas_that_read_while_the_learner_writes_see_whole_versions(tmp_path: Path) -> None:
    """Threads stand for processes: locks belong to open files."""
    announced, over, wrong, seen = list[Manifest](), threading.Event(), list[str](), list[int]()

    def reads(pause: float) -> None:
        while not over.is_set():
            if not announced:
                continue
            manifest = announced[-1]
            time.sleep(pause)  # so that it comes late, or stays long
            try:
                with check_file(manifest.update_info()) as file:
                    result = loaded(file)
            except StaleWeights as error:
                if isinstance(error, DamagedWeights):
                    wrong.append(str(error))
                continue
            time.sleep(pause)
            if set(result.unique().tolist()) != {float(manifest.version)}:
                wrong.append(f"{manifest.version}: {result.unique()}")
            seen.append(manifest.version)

    files = FileTransport(tmp_path, "r", announced.append, cast(Any, None), 10**6, lambda: True)
    readers = [threading.Thread(target=reads, args=(pause,)) for pause in (0.0, 0.001, 0.01, 0.05)]
    for reader in readers:
        reader.start()
    until, version = time.monotonic() + 4, 0
    while time.monotonic() < until:
        version += 1
        published(files, version)
    over.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert version > 50
    assert len(set(seen)) > 20


def test_a_number_that_was_given_to_another_file_is_an_older_version_and_no_damage(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    each, other = socket.socketpair()
    try:
        for number in (folder, each.fileno()):
            info = {"path": path_of(number), "bytes": 1, "digest": "", "version": 1}
            with pytest.raises(StaleWeights) as calls:
                check_file(info)
            assert not isinstance(calls.value, DamagedWeights)
    finally:
        os.close(folder)
        each.close()
        other.close()


def test_the_last_version_outlives_the_learner_and_replaces_what_was_in_memory(tmp_path: Path) -> None:
    files = transport(tmp_path, [])
    before = published(files, LAST - 1)
    last = published(files, LAST)
    assert in_memory(before)
    assert last.path == str(tmp_path / f"{LAST:08d}.safetensors")
    assert torch.equal(load_file(last.path)["w"], torch.full(SHAPE, float(LAST)))
    check_file(last.update_info()).close()
    with pytest.raises(StaleWeights):
        check_file(before.update_info())


def test_several_machines_or_short_memory_get_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sender, "ASK_S", 0.0)
    machines = [1]
    files = FileTransport(tmp_path, "r", lambda _: None, None, LAST, lambda: len(machines) == 1)
    assert in_memory(published(files, 1))
    assert not files.out_of_reach()
    machines.append(2)
    assert files.out_of_reach()
    assert not in_memory(published(files, 1))
    assert not files.out_of_reach()
    needed = 4 * SHAPE[0] * SHAPE[1]
    for spare in (0, 1024):
        monkeypatch.setattr(file_sender, "free_memory", lambda spare=spare: needed + spare)
        files = transport(tmp_path, [])
        for version in (2, 3, 4):
            assert in_memory(published(files, version)) == bool(spare), "as much again must stay free"
        assert len(files._memory._files) == (2 if spare else 1)


KILLED = """
import sys, torch
from pathlib import Path
from hora_rl.common.weights.file_sender import FileTransport
from hora_rl.common.weights.host_memory import Snapshot
files = FileTransport(Path(sys.argv[1]), "r", lambda _: None, None, 9, lambda: True)
manifest = files.write(Snapshot(1, [("w", torch.full((64, 1024), 1.0))], torch.device("cpu")))
print(manifest.path, manifest.digest, manifest.bytes, flush=True)
if sys.stdin.readline():
    files.room(files._memory._files[manifest.path].shapes).tensors["w"][:32] = 2.0
    print("in the middle", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("writing", [False, True])
def test_a_killed_learner_leaves_nothing_and_takes_nothing_from_who_reads(
    tmp_path: Path, writing: bool
) -> None:
    """`writing`: in the middle of a newer version, while a replica is about to lock the old one."""
    command, pipe = [sys.executable, "-c", KILLED, str(tmp_path)], subprocess.PIPE
    learner = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    path, digest, size = learner.stdout.readline().split()
    info = {"version": 1, "path": path, "digest": digest, "bytes": int(size)}
    with open(path, "rb") if writing else check_file(info) as opened:
        late = {**info, "path": path_of(opened.fileno())}
        if writing:
            learner.stdin.write("\n")
            learner.stdin.flush()
            assert learner.stdout.readline() == "in the middle\n"
            with pytest.raises(StaleWeights, match="gets a newer version"):
                check_file(late)
        learner.send_signal(signal.SIGKILL)
        learner.wait()
        if writing:
            with pytest.raises(DamagedWeights):
                check_file(late)
        else:
            assert torch.equal(load_file(late["path"])["w"], torch.ones(SHAPE))
    with pytest.raises(StaleWeights) as gone:
        check_file(info)
    assert not isinstance(gone.value, DamagedWeights)
    assert not list(tmp_path.iterdir())
