"""Loads the initial policy: at once, or for ZeRO-3 one parameter at a time, so that a rank never holds more
than its shards and one full parameter.

The context manager `deepspeed.zero.Init` would also cast buffers computed in constructors, such as rotary
frequencies, to 16 bits. So the model is built without it, with parameters on the meta device and real
buffers; each parameter is then read and sharded separately."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module, Parameter
from torch.nn.modules.module import register_module_parameter_registration_hook

from hora_rl.common.config import LearnerConfig, ModelConfig
from hora_rl.common.errors import ConfigError, one_line
from hora_rl.common.model.adapters import refuse_to_train
from hora_rl.common.model.model_files import RENAMED, names_in_files, own_configuration
from hora_rl.learner.model.logprobs import without_dropout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNKNOWN = re.compile(r"configuration class <class '[\w.]*?(\w+)Config'>|model type `([\w-]+)` but")
"""transformers' errors about a model that it does not have."""


def load_model(model: ModelConfig, learner: LearnerConfig) -> PreTrainedModel:
    """The initial policy for training. Raises ConfigError if `model.path` is no causal language model."""
    from transformers import AutoModelForCausalLM

    refuse_to_train(model)
    try:
        hf = AutoModelForCausalLM.from_pretrained(
            model.path,
            config=own_configuration(model),
            key_mapping=RENAMED,
            dtype=DTYPES[model.dtype],
            trust_remote_code=model.trust_remote_code,
        )
    except (OSError, ValueError, ImportError) as error:
        raise not_loaded(model, error) from None
    hf._weight_conversions = None  # published and exported by the names of its own class
    return for_training(hf, learner)


def for_training(hf: PreTrainedModel, learner: LearnerConfig) -> PreTrainedModel:
    """Configure `hf` without dropout, and with gradient checkpointing if configured."""
    if learner.gradient_checkpointing:  # without dropout nothing is drawn
        hf.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    return without_dropout(hf)


def load_by_part(
    source: ModelConfig,
    dtype: torch.dtype,
    settings: Mapping[str, object],
    device: torch.device,
) -> PreTrainedModel | None:
    """The model of `source.path` with every parameter sharded over the ranks, equal to `from_pretrained`
    under ZeRO-3; None if every rank must load the full model: the files are not safetensors, or
    `from_pretrained` converts names, shapes or precisions. A collective; rank 0 reads. `settings` are
    DeepSpeed's."""
    try:
        model = skeleton(source, dtype)
        names = _Files(source.path)
    except (OSError, ValueError, ImportError):
        return None  # loading the full model reports the reason
    if reason := _misfit(model, names, dtype):
        warnings.warn(f"ZeRO-3: every rank loads the model whole, because {reason}", stacklevel=2)
        return None
    _load_buffers(model, names, device)
    made, first = dict[Parameter, Parameter](), torch.distributed.get_rank() == 0
    name_of = {p: name for name, p in model.named_parameters(remove_duplicate=False) if name in names}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            if old not in made:
                tensor = torch.empty(old.shape, dtype=dtype, device=device)
                if first:
                    tensor.copy_(names.read(name_of[old]))
                made[old] = Parameter(tensor, old.requires_grad)
                _shard(made[old], next(iter(made.values())), settings)
            setattr(module, name, made[old])
    return model


def skeleton(source: ModelConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The model with parameters on the meta device and real buffers."""
    from transformers import AutoModelForCausalLM

    config, trusted = own_configuration(source), source.trust_remote_code
    hook = register_module_parameter_registration_hook(_on_meta)  # type: ignore[arg-type]  # may return one
    with hook, torch.random.fork_rng(devices=[]):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=trusted
        )
    return model.eval()


def _on_meta(module: Module, name: str, parameter: Parameter | None) -> Parameter | None:
    """Move a parameter to the meta device, unless it is there: it may be shared with another module."""
    if parameter is None or parameter.is_meta:
        return None
    return Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)


class _Files(dict[str, Any]):
    """The open safetensors of a folder or hub model, by the name of a parameter; read one at a time."""

    def __init__(self, path: str) -> None:
        from safetensors import safe_open

        opened = [safe_open(file, framework="pt") for file in _weight_files(path)]
        files = {name: file for file in opened for name in file.keys()}  # noqa: SIM118
        self._names = names_in_files(files)
        super().__init__({name: files[in_file] for name, in_file in self._names.items()})

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self[name].get_slice(self._names[name]).get_shape())

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self[name].get_tensor(self._names[name])
        return tensor


def _weight_files(path: str) -> Sequence[str]:
    """Paths of the safetensors. Raises OSError without any."""
    from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
    from transformers.utils.hub import get_checkpoint_shard_files

    index = cached_file(path, SAFE_WEIGHTS_INDEX_NAME, _raise_exceptions_for_missing_entries=False)
    if index is not None:
        files: Sequence[str] = get_checkpoint_shard_files(path, index)[0]
        return files
    single = cached_file(path, SAFE_WEIGHTS_NAME)
    if single is None:
        raise OSError(f"{path} has no {SAFE_WEIGHTS_NAME}")
    return [single]


def _misfit(model: PreTrainedModel, files: _Files, dtype: torch.dtype) -> str:
    """Why the tensors of `files` do not match the model's parameters one to one; empty if they do."""
    parameters: dict[Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parameters.setdefault(parameter, []).append(name)
    known = {name for names in parameters.values() for name in names}
    buffers = set(model.state_dict(keep_vars=True)) - known
    kept = getattr(model, "_keep_in_fp32_modules", None) or getattr(
        model, "_keep_in_fp32_modules_strict", None
    )
    if kept and dtype != torch.float32:
        return f"{', '.join(sorted(kept))} stay in float32"
    if unknown := sorted(files.keys() - known - buffers):
        return f"{unknown[0]} of its files is no parameter's name"
    if missing := sorted(buffers - files.keys()):
        return f"{missing[0]} is not in its files"
    for parameter, names in parameters.items():
        present = [name for name in names if name in files]
        if len(present) != 1:
            return f"{' and '.join(present or names)} {'are both' if present else 'is not'} in its files"
        if files.shape(present[0]) != tuple(parameter.shape):
            return f"{present[0]} has another shape in its files"
    return ""


def _load_buffers(model: PreTrainedModel, files: _Files, device: torch.device) -> None:
    """Put every buffer on `device`, with the value in the files if there is one."""
    for name, buffer in list(model.named_buffers(remove_duplicate=False)):
        if name in files:
            buffer.copy_(files.read(name))
        module, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(module), attribute, buffer.to(device))


def _shard(parameter: Parameter, first: Parameter, settings: Mapping[str, object]) -> None:
    """Shard a whole parameter as ZeRO-3 does: broadcast it from rank 0 and keep this rank's part. `first` is
    the model's first parameter and must be sharded first. A collective."""
    import deepspeed

    if parameter is first:
        holder = Module()
        holder.register_parameter("first", parameter)
        deepspeed.zero.Init(module=holder, config_dict_or_path=dict(settings))
    else:  # as DeepSpeed adds to a model that is sharded already
        first.convert_to_zero_parameters(param_list=[parameter])  # type: ignore[attr-defined]


def not_loaded(source: ModelConfig, error: Exception) -> ConfigError:
    """The error of a model that transformers cannot build."""
    if match := UNKNOWN.search(str(error)):
        return ConfigError(
            f"model.path ({source.path}): transformers, with which the learner trains, has no causal "
            f"language model of type {match[1] or match[2]}: use another model"
        )
    if "trust_remote_code" in str(error):
        return ConfigError(
            f"model.path ({source.path}): it needs the code in its folder: read that, and set "
            "model.trust_remote_code: true if you trust it"
        )
    return ConfigError(f"model.path ({source.path}): {one_line(error)}")
