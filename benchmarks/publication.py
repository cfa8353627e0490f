"""One update of the weights over `file`, part by part, before and after: both sides in one run.

    .venv/bin/python -m benchmarks.publication [--model FOLDER] [--dtype bfloat16]

The learner's copy in kept host memory, the file, the replica's check of it, and a real vLLM engine that loads
it, one after the other. Before: a file that is synced to the disk of --folder, and SHA-256 on both sides.
After: a file in memory, and BLAKE3. Without --model random weights of SmolLM2-135M's shape.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hora_rl.actors.generator.vllm_engine import Engine
from hora_rl.common.files import sync
from hora_rl.common.load import load
from hora_rl.common.prompts import load_tokenizer
from hora_rl.common.weight_versions import Manifest, check_file, path_of
from hora_rl.learner.weights.file_transport import FileTransport, _chunks, _header
from hora_rl.learner.weights.host_copy import HostCopy, Snapshot

T = TypeVar("T")
CPU = torch.device("cpu")


class Weights:
    """What publication asks of the learner's engine: one rank, nothing gathered."""

    device = CPU

    def __init__(self, hf: Any) -> None:
        self.hf = hf

    def whole(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, parameter.detach()) for name, parameter in self.hf.named_parameters())


class Parts(dict[str, list[float]]):
    """Seconds of each part of an update, by its name."""

    def timed(self, name: str, action: Callable[[], T]) -> T:
        began = time.monotonic()
        result = action()
        self.setdefault(name, []).append(time.monotonic() - began)
        return result


def synced(weights: Snapshot, folder: Path, dtype: str) -> tuple[Path, str]:
    """The file on the disk, and its SHA-256."""
    path, digest = folder / f"{weights.version:08d}.safetensors", hashlib.sha256()
    with path.open("wb") as file:
        for chunk in _chunks(weights, _header(weights, dtype)):
            file.write(chunk)
            digest.update(chunk)
    sync(path, folder)
    return path, digest.hexdigest()


def of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def loaded(engine: Engine, path: str, version: int, parts: Parts) -> None:
    began = time.monotonic()
    await engine.receive({"version": version, "path": path})
    installed = await engine.install(version)
    parts.setdefault("load", []).append(time.monotonic() - began)
    parts.setdefault("of that a pause", []).append(installed.pause_s)


async def measure(engine: Engine, hf: Any, dtype: str, folder: Path, rounds: int) -> tuple[Parts, Parts]:
    copy, before, after = HostCopy(cast(Any, Weights(hf)), rank=0), Parts(), Parts()
    copy.take()  # its memory is made once a run
    last = 2 * rounds + 1
    files = FileTransport(folder / "files", "r", dtype, lambda _: None, cast(Any, None), last, lambda: True)
    for version in range(1, last, 2):
        weights = Snapshot(version, before.timed("copy", copy.take), CPU)
        path, digest = before.timed("file", lambda of=weights: synced(of, folder, dtype))  # type: ignore[misc]
        assert before.timed("check", lambda at=path: of_file(at)) == digest  # type: ignore[misc]
        await loaded(engine, str(path), version, before)
        path.unlink()
        weights = Snapshot(version + 1, after.timed("copy", copy.take), CPU)
        manifest: Manifest = after.timed("file", lambda of=weights: files.write(of))  # type: ignore[misc]
        files.announce(manifest)
        about: Mapping[str, Any] = manifest.update_info()
        with after.timed("check", lambda of=about: check_file(of)) as file:  # type: ignore[misc]
            await loaded(engine, path_of(file.fileno()), version + 1, after)
    return before, after


def show(before: Parts, after: Parts) -> None:
    print(f"{'seconds':<18}{'before':>8}{'after':>8}")
    for name in before:
        print(f"{name:<18}{statistics.median(before[name]):>8.2f}{statistics.median(after[name]):>8.2f}")
    whole = [
        statistics.median(map(sum, zip(*(p[n] for n in ("copy", "file", "check", "load")), strict=True)))
        for p in (before, after)
    ]
    print(f"{'an update':<18}{whole[0]:>8.2f}{whole[1]:>8.2f}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        hf = model(options.model, folder / "model", options.dtype)
        size = sum(p.nbytes for p in hf.parameters())
        print(f"{sum(p.numel() for p in hf.parameters()) / 1e6:.0f} million parameters, {size / 1e9:.2f} GB")
        settings = [
            f"model.path={options.model or folder / 'model'}",
            f"model.dtype={options.dtype}",
            f"generator.threads={options.threads}",
        ]
        engine = Engine(load("tiny", settings))
        try:
            await engine.begin()
            show(*await measure(engine, hf, options.dtype, folder, options.rounds))
        finally:
            engine.shutdown()


def model(given: Path | None, folder: Path, dtype: str) -> Any:
    """The model at `given`, or a random one, which is written to `folder`."""
    if given is not None:
        return AutoModelForCausalLM.from_pretrained(given, dtype=getattr(torch, dtype))
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    hf = LlamaForCausalLM(config).to(getattr(torch, dtype))
    hf.save_pretrained(folder)
    load_tokenizer(load("tiny").model.path).save_pretrained(folder)
    return hf


if __name__ == "__main__":
    asyncio.run(main())
