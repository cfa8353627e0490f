"""A low-rank adapter in the policy: injected into the model, switched off for the reference, written and
merged. Only its parameters are trained, published and saved in checkpoints. The base, the model of
`model.path`, never changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hora_rl.common.config import LoraConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.model.adapters import SETTINGS, WEIGHTS, parts_of
from hora_rl.common.model.model_files import weights_digest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IDENTITY = "adapter.json"
"""File of the adapter's identity in a checkpoint. A checkpoint of full weights has none."""
SHOWN = 12


def check_targets(hf: PreTrainedModel, lora: LoraConfig) -> None:
    """Raise ConfigError for a target that names no linear layer of the model's backbone."""
    linear, other = set[str](), set[str]()
    head = hf.get_output_embeddings()
    for name, module in hf.named_modules():
        fits = isinstance(module, torch.nn.Linear) and module is not head
        (linear if fits else other).add(name.rpartition(".")[2])
    for target in lora.targets:
        if target in linear:
            continue
        what = (
            "is no linear layer of a block, and vLLM serves adapters of these alone"
            if target in other
            else "is not in the model"
        )
        raise ConfigError(
            f"learner.lora.targets ({target}): {what}; {type(hf).__name__} of {hf.config.name_or_path} has "
            f"{', '.join(sorted(linear)[:SHOWN])}"
        )


def add_adapter(hf: PreTrainedModel, seed: int, lora: LoraConfig) -> None:
    """Inject a new adapter into `hf` and freeze everything else. A is random, determined by `seed`; B is
    zero, so the policy still equals its base."""
    from peft import LoraConfig, inject_adapter_in_model

    check_targets(hf, lora)
    settings = LoraConfig(**lora.adapter_config)  # type: ignore[arg-type]  # by name, of several types
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(settings, hf)
        except ValueError as error:
            raise ConfigError(f"learner.lora.targets ({', '.join(lora.targets)}): {error}") from error
    if settings.target_parameters:  # peft has turned names of layers into fused experts
        raise ConfigError(
            f"learner.lora.targets ({', '.join(lora.targets)}): some of {type(hf).__name__} are experts that "
            "share one weight, and vLLM serves no adapters of these: name layers outside the experts, such "
            "as q_proj, k_proj, v_proj, o_proj"
        )
    hf.register_state_dict_post_hook(_drop_frozen)


def _drop_frozen(hf: torch.nn.Module, state: dict[str, object], prefix: str, _: object) -> None:
    """Keep the base out of checkpoints: DeepSpeed keeps the second name of a tied frozen parameter."""
    for name, parameter in hf.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            state.pop(prefix + name, None)


@contextmanager
def without_adapter(hf: PreTrainedModel) -> Iterator[None]:
    """Within the block `hf` is its base: the reference of a KL term, without a second copy."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [m for m in hf.modules() if isinstance(m, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def identity(base: str, lora: LoraConfig) -> dict[str, object]:
    return {
        "base": base,
        "base_weights": weights_digest(Path(base)),
        "rank": lora.rank,
        "alpha": lora.alpha,
        "targets": sorted(lora.targets),
    }


def check_identity(folder: Path, base: str, lora: LoraConfig | None) -> None:
    """Raise ConfigError if the checkpoint in `folder` is of another kind of weights, adapter or base."""
    file = folder / IDENTITY
    stored = json.loads(file.read_text()) if file.exists() else None
    wanted = None if lora is None else identity(base, lora)
    if stored is None or wanted is None:
        if stored is not wanted:
            there, here = (
                f"an adapter of rank {x['rank']}" if x else "full weights" for x in (stored, wanted)
            )
            raise ConfigError(
                f"{folder} holds {there}, and learner.lora asks for {here}: set learner.lora back, or start "
                "anew under another run.name"
            )
        return
    same_base = stored["base_weights"] is not None and stored["base_weights"] == wanted["base_weights"]
    ignored = {"base"} if same_base else set()  # a folder that was moved is still the same base
    for key in sorted(wanted.keys() - ignored):
        if stored[key] != wanted[key]:
            raise ConfigError(
                f"{folder} holds another adapter than learner.lora and model.path ask for: {key} is "
                f"{stored[key]!r} there and {wanted[key]!r} here; set it back, or start anew under another "
                "run.name"
            )


def write_adapter(folder: Path, tensors: Mapping[str, torch.Tensor], base: str, lora: LoraConfig) -> None:
    """Write `tensors`, by their published names, as an adapter of the model `base` for peft and vLLM."""
    from safetensors.torch import save_file

    settings = {
        **lora.adapter_config,
        "base_model_name_or_path": base,
        "inference_mode": True,
    }
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / WEIGHTS)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n")


def merge(hf: PreTrainedModel, tensors: Mapping[str, torch.Tensor], scale: float) -> None:
    """Add scale·B·A to each weight of the base `hf`, in float32, rounded once to the weight's precision."""
    of_layer: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        layer, part = parts_of(name)
        of_layer.setdefault(layer, {})[part] = tensor.float()
    with torch.no_grad():
        for layer, pair in of_layer.items():
            weight = hf.get_submodule(layer).weight
            assert isinstance(weight, torch.Tensor)
            weight.copy_(weight.float() + scale * (pair["B"] @ pair["A"]))
