"""What a worker does with a published file: it frees the learner's memory, and a GPU gets it in one piece."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from hora_rl.common.load import load
from hora_rl.common.weights import file_receiver
from hora_rl.common.weights.announcement import Manifest, check_file, path_of
from hora_rl.common.weights.file_receiver import FILES, DeviceCopies
from hora_rl.common.weights.file_sender import FileTransport
from hora_rl.common.weights.host_memory import Snapshot
from hora_rl.common.weights.weight_file import file_size, header_of, tensors_in
from tests.support.engines import engine_of

CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs an NVIDIA GPU, this machine has none"
)


def transport(folder: Path) -> FileTransport:
    return FileTransport(folder, "r", lambda _: None, cast(Any, None), 99, lambda: True)


def published(files: FileTransport, version: int, size: int = 1000) -> Manifest:
    tensors = [("a", torch.full((size,), float(version))), ("b", torch.full((3,), version + 0.5))]
    manifest = files.write(Snapshot(version, tensors, CPU))
    files.announce(manifest)
    return manifest


def test_tensors_of_several_types_have_places_that_fit_them() -> None:
    shapes = [("x", torch.bfloat16, (3,)), ("y", torch.float32, (2, 5)), ("z", torch.float16, (0, 4))]
    header = header_of(shapes, 7)
    raw = torch.zeros(file_size(header), dtype=torch.uint8)
    found = dict(tensors_in(raw, header))
    assert {name: (t.dtype, tuple(t.shape)) for name, t in found.items()} == {n: (d, s) for n, d, s in shapes}
    assert len(header_of(shapes, 10**8 - 1)) == len(header)
    for name, tensor in found.items():
        tensor.fill_(ord(name))
    assert all((tensor == ord(name)).all() for name, tensor in found.items()), "none overlaps another"
    assert file_size(header) == len(header) + 3 * 2 + 10 * 4


class Registered:
    """Stands in for CUDA: the memory that is registered now."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.ever = list[int](), 0
        patch.setattr(file_receiver, "register", self._add)
        patch.setattr(file_receiver, "unregister", lambda memory: self.now.remove(memory.data_ptr()))
        patch.setattr(torch.cuda, "Stream", lambda _: None)

    def _add(self, memory: Any) -> None:
        self.now.append(memory.data_ptr())
        self.ever += 1


def test_memory_is_registered_once_and_locked_only_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered, files = Registered(monkeypatch), transport(tmp_path)
    copies = DeviceCopies(CPU)
    for version in range(1, 8):
        with check_file(published(files, version).update_info()) as file:
            arriving = copies.receive(path_of(file.fileno()), ahead=False)
        assert not any(f.claim() for f in files._memory._files.values() if f.path == files._newest)
        assert [t[0].item() for _, t in arriving] == [version, version + 0.5]
    assert registered.ever == 2, "two files in turn"
    assert len(files._memory._files) == 2


def test_memory_of_another_learner_and_more_than_three_files_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered, copies = Registered(monkeypatch), DeviceCopies(CPU)
    for version in range(1, 6):
        assert list(copies.receive(published(transport(tmp_path), version).path, ahead=False))
    assert (len(registered.now), registered.ever) == (FILES, 5)
    monkeypatch.setattr("hora_rl.common.weights.host_memory.os.getpid", lambda: 1)
    manifest = published(transport(tmp_path), 9)
    path = manifest.path.replace("/proc/1/", "/proc/self/")
    assert list(copies.receive(path, ahead=False))
    assert len(registered.now) == 1


def test_without_registered_memory_weights_are_copied_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Registered(monkeypatch)

    def refuses(_: object) -> None:
        raise RuntimeError("operation not supported")

    monkeypatch.setattr(file_receiver, "register", refuses)
    copies, files = DeviceCopies(CPU), transport(tmp_path)
    for version in (1, 2):
        found = dict(copies.receive(published(files, version).path, ahead=False))
        assert found["a"][0] == version


@pytest.mark.parametrize(
    ("free", "fits"),
    [
        ((150, 50), True),
        ((149,), False),  # 50 of 1,000 would not stay free
        ((150, 49), False),  # another engine took memory at the same time
    ],
)
def test_a_copy_leaves_a_twentieth_of_a_card_free(
    free: tuple[int, ...], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Registered(monkeypatch)
    left = iter(free)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (next(left), 1000))
    assert (DeviceCopies(CPU)._room(100) is not None) == fits
    assert not list(left)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("fits", [True, False])
def test_a_gpu_gets_the_bytes_of_the_file(
    tmp_path: Path, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceCopies, "_leaves_spare", lambda *_: fits)
    copies, files = DeviceCopies(torch.device("cuda", 0)), transport(tmp_path)
    for version in range(1, 5):
        arriving = copies.receive(published(files, version, 10**6).path, ahead=True)
        if fits:
            published(files, 50)
            published(files, 51)
        found = dict(arriving)
        assert found["a"].is_cuda
        assert (found["a"] == version).all()
    assert len(copies._registered) <= FILES


class Model(torch.nn.Module):
    """A model of two layers, loaded as vLLM's are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(40, 25, bias=False) for _ in "ab")

    def load_weights(self, weights: Any) -> None:
        parameters: Any = dict(self.named_parameters())
        for name, tensor in weights:
            parameters[name].weight_loader(parameters[name], tensor)


@pytest.mark.system
@pytest.mark.timeout(120)
@pytest.mark.parametrize("left_out", ["layers.1.weight", ""])
def test_over_nccl_a_version_that_lacks_a_layer_is_refused(left_out: str) -> None:
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    from hora_rl.common.weights.vllm_transfer import NcclEngine

    model, engine = Model(), NcclEngine.__new__(NcclEngine)
    record_metadata_for_reloading(model)
    engine.model, engine.model_config = cast(Any, model), cast(Any, None)
    engine.start_weight_update()
    names = [name for name, _ in model.named_parameters() if name != left_out]
    model.load_weights((name, torch.full((25, 40), 7.0)) for name in names)
    with pytest.raises(RuntimeError, match=r"layers\.1") if left_out else nullcontext():
        engine.finish_weight_update()
    assert left_out or all((p == 7.0).all() for p in model.parameters())


@pytest.mark.system
@pytest.mark.timeout(120)
def test_both_sides_cut_chunks_at_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from hora_rl.common.weights import group_sender, vllm_transfer
    from hora_rl.common.weights.host_memory import Snapshot

    sizes = list[int]()
    monkeypatch.setattr(vllm_transfer, "_joined", lambda *_: None)
    engine = vllm_transfer.NcclEngine.__new__(vllm_transfer.NcclEngine)
    engine.parallel_config = cast(Any, SimpleNamespace(rank=0))
    engine.init_transfer_engine(cast(Any, None))
    sizes.append(engine.packed_buffer_size_bytes)

    def produce(*_: Any, buffer_size_bytes: int) -> None:
        sizes.append(buffer_size_bytes)

    monkeypatch.setattr(vllm_transfer, "packed_nccl_broadcast_producer", produce)
    group = group_sender.TransferGroup.__new__(group_sender.TransferGroup)
    group._members, group._group, group._nccl, group._name = ("a",), object(), True, ""
    group._broadcast = cast(Any, SimpleNamespace(update=lambda *_: None, confirm=lambda _: []))
    weights = Snapshot(1, [("w", torch.zeros(2))], torch.device("cpu"))
    group._send(weights, ("a",))
    assert sizes == [256 * 2**20] * 2


@pytest.mark.system
@pytest.mark.timeout(240)
async def test_an_engine_loads_each_version_and_lets_go_of_its_memory(tmp_path: Path) -> None:
    config = load("tiny", [])
    initial = load_file(Path(config.model.path) / "model.safetensors")
    files, places, sums = transport(tmp_path), set[int](), list[str]()
    async with engine_of(config) as engine:
        sums.append(await engine.checksum())
        for version, factor in ((1, 0.5), (2, 2.0), (3, 0.5), (4, 1.0), (5, 2.0)):
            weights = Snapshot(version, [(n, t * factor) for n, t in initial.items()], CPU)
            manifest = files.write(weights)
            files.announce(manifest)
            places.add(os.stat(manifest.path).st_ino)
            with check_file(manifest.update_info()) as file:
                await engine.receive({"version": version, "path": path_of(file.fileno())})
                assert not files._memory._files[manifest.path].claim()
                sums.append((await engine.install(version)).checksum)
        manifest = files.write(Snapshot(6, [(n, t) for n, t in initial.items() if "layers.1." not in n], CPU))
        with check_file(manifest.update_info()) as file:
            await engine.receive({"version": 6, "path": path_of(file.fileno())})
            with pytest.raises(Exception, match="got no weights"):
                await engine.install(6)
    assert len(places) == 2, "no tensor of an old version is left in the engine"
    assert sums[0] == sums[4] != sums[1] == sums[3]
    assert sums[2] == sums[5] not in (sums[0], sums[1])
