"""Check a model's files before they are loaded. Reads headers and index, no weights.

transformers loads empty (`meta`) tensors with the names, types and shapes of the headers, and reports missing
parameters.
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from hora_rl.common.config import ModelConfig
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.errors import ConfigError, one_line
from hora_rl.common.model.adapters import WEIGHTS
from hora_rl.common.model.model_files import names_in_files
from hora_rl.deploy.checks.findings import Finding, Target, configuration_of, ok

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""torch's name of each safetensors type of weights."""
DAMAGE = "copy the model again"
CONVERSION = re.compile(r"^(\S+)\s*\|.*CONVERSION", re.MULTILINE)
"""A parameter's row in transformers' report."""
Tensors = dict[str, tuple[Path, str, list[int]]]
"""File, type and shape by tensor name."""


def weight_files(target: Target) -> Iterator[Finding]:
    """Compare the files of `model.path` and `model.adapter` with the index and the model's configuration."""
    config = target.config
    if config.model.adapter is not None:
        read_header(Path(config.model.adapter) / WEIGHTS)
    folder = Path(config.model.path)
    tensors = read_headers(folder)
    settings = configuration_of(config.model) if tensors else None  # none of a hub name or another format
    if settings is None:
        return
    named = {name: tensors[stored] for name, stored in names_in_files(tensors).items()}
    _compare(config.model, settings, named)
    _check_tokenizer(config.model, settings)
    files = {path.name for path, _, _ in tensors.values()}
    yield ok("weight files", f"{len(tensors)} tensors in {len(files)} files are those of the model")


def read_headers(folder: Path) -> Tensors:
    """The tensors of a model's safetensors files; empty if it has none. Raises ConfigError if the index or a
    file is missing or damaged."""
    index, single = folder / INDEX, folder / SINGLE
    if single.is_file():
        return read_header(single)
    if not index.is_file():
        return {}
    places = _read_index(index)
    tensors: Tensors = {}
    for file in sorted({*places.values()}):
        tensors |= read_header(folder / file)
    for name, file in places.items():
        if name not in tensors or tensors[name][0].name != file:
            raise ConfigError(f"{index}: says that {name} is in {file}, which does not hold it; {DAMAGE}")
    return tensors


def read_header(path: Path) -> Tensors:
    """The tensors of a safetensors file. Raises ConfigError if the file is missing, cut or damaged."""
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file; {DAMAGE}")
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: (path, of.get_dtype(), of.get_shape()) for name, of in slices.items()}
    except (SafetensorError, OSError) as error:
        text = one_line(error, 200)
        raise ConfigError(f"{path}: not a whole safetensors file ({text}); {DAMAGE}") from None


def _read_index(index: Path) -> dict[str, str]:
    try:
        places = json.loads(index.read_bytes())["weight_map"]
        pairs = {str(name): str(file) for name, file in places.items()}
        if not all(isinstance(file, str) for file in places.values()):
            raise TypeError("a file's name is not text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = one_line(f"{type(error).__name__}: {error}", 200)
        raise ConfigError(f"{index}: not an index of weight files ({text}); {DAMAGE}") from None
    if strange := next((file for file in pairs.values() if Path(file).name != file), None):
        raise ConfigError(f"{index}: names {strange!r}, which is no file beside it; {DAMAGE}")
    return pairs


def _compare(model: ModelConfig, settings: PreTrainedConfig, tensors: Tensors) -> None:
    """Raise ConfigError for the first tensor that contradicts the model's configuration."""
    path = Path(model.path)
    if getattr(settings, "quantization_config", None) is not None:
        return  # types and shapes depend on the kernels
    for name, (file, dtype, _) in tensors.items():
        if dtype not in DTYPES:
            raise ConfigError(f"{file}: {name} has type {dtype}, which are no weights of 16, 32 or 64 bits")
    info = _loaded(settings, tensors, model.trust_remote_code)
    for name, there, wanted in sorted(info.get("mismatched_keys", ())):
        file = tensors[name][0] if name in tensors else path
        raise ConfigError(
            f"{file}: {name} has shape {list(there)}, and by {path / 'config.json'} the model's has "
            f"{list(wanted)}: the two are not of one model"
        )
    for name in sorted(info.get("missing_keys", ())):
        strange = next(iter(sorted(info["unexpected_keys"])), None)
        instead = f"; they hold {strange}, which the model does not have" if strange else ""
        raise ConfigError(
            f"{path}: no file holds {name}, which the model has by its config.json{instead}; {DAMAGE}"
        )


def _loaded(settings: PreTrainedConfig, headers: Tensors, trusted: bool) -> dict[str, Any]:
    """transformers' loading report for tensors like these; empty if it cannot build the model."""
    import torch
    from transformers import AutoModelForCausalLM

    tensors = {
        name: torch.empty(shape, dtype=getattr(torch, DTYPES[dtype]), device="meta")
        for name, (_, dtype, shape) in headers.items()
    }
    try:
        with _report() as report:
            with torch.device("meta"):
                kind = type(AutoModelForCausalLM.from_config(settings, trust_remote_code=trusted))
            _, info = kind.from_pretrained(
                None,
                config=settings,
                state_dict=tensors,
                device_map="meta",
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        return dict(info)
    except (OSError, ValueError, ImportError):
        return {}
    except RuntimeError:
        # Several tensors form one parameter, such as the experts of a layer, and one is missing.
        where = next(iter(CONVERSION.findall(report.getvalue())), "one of the model's parameters")
        raise ConfigError(
            f"{settings.name_or_path}: {where} cannot be made of the tensors in the files: one is missing, "
            f"or has another shape than the others; {DAMAGE}"
        ) from None


@contextmanager
def _report() -> Iterator[io.StringIO]:
    """Capture the log of transformers and hide its progress bar while the block runs."""
    from transformers.utils import logging as its

    text, root, bar = io.StringIO(), logging.getLogger("transformers"), its.is_progress_bar_enabled()
    printing, root.handlers = root.handlers, [logging.StreamHandler(text)]
    its.disable_progress_bar()
    try:
        yield text
    finally:
        root.handlers = printing
        if bar:
            its.enable_progress_bar()


def _check_tokenizer(model: ModelConfig, settings: PreTrainedConfig) -> None:
    """Raise ConfigError if the tokenizer's ids exceed the model's vocabulary. Added tokens that no text
    contains may exceed it."""
    tokenizer = load_tokenizer(model.path, model.trust_remote_code)
    added = set(tokenizer.added_tokens_decoder) - {tokenizer.eos_token_id, tokenizer.bos_token_id}
    rows = settings.get_text_config().vocab_size
    largest, word = max((i, word) for word, i in tokenizer.get_vocab().items() if i not in added)
    if largest >= rows:
        raise ConfigError(
            f"{model.path}: its tokenizer has {word!r} as number {largest}, and the model a "
            f"vocabulary of {rows} (config.json): they are not of one model"
        )
