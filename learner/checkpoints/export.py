"""The policy as a Hugging Face folder: config, safetensors and tokenizer, for `from_pretrained`.

`export` writes RUN/model from the live engine; `export_checkpoint` writes any checkpoint of a run, on one
CPU, without a process group, queue or cluster. With `learner.lora` that is the merged model, and RUN/adapter
holds the adapter."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.files import sync_tree
from hora_rl.common.model.adapters import PARAMETER, published_name
from hora_rl.common.model.model_files import weights_digest
from hora_rl.learner.checkpoints.checkpoint import TAG
from hora_rl.learner.checkpoints.manifest import Refused, read_secret, verified
from hora_rl.learner.checkpoints.origin import candidate, is_candidate, is_missing, steps_in, write_origin
from hora_rl.learner.model.engine import Engine
from hora_rl.learner.model.loading import DTYPES, load_model
from hora_rl.learner.model.lora import merge, write_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Tensors = Mapping[str, torch.Tensor]
OF_ENGINE = "hf."
"""Prefix of parameter names in a checkpoint: the engine holds the policy as `hf`."""


def export(
    engine: Engine, config: Config, folder: Path, rank: int, step: int, adapter: Path | None = None
) -> None:
    """Write the engine's policy after `step` steps to `folder`, and with `learner.lora` its adapter to
    `adapter` if given. A collective; rank 0 writes. The folders are complete or absent."""
    tensors = {name: tensor for name, tensor in engine.gathered() if rank == 0}
    if rank != 0:
        return
    if adapter is not None and config.learner.lora is not None:
        _write(tensors, config, step, adapter, adapter=True)
    _write(tensors, config, step, folder, None if config.learner.lora else engine.hf)


def export_candidate(engine: Engine, config: Config, run_dir: Path, step: int) -> None:
    """Write the weights after `step` steps if their evaluation may find them best. A collective."""
    if not is_candidate(config.learner, config.evaluation.every, step):
        return
    if engine.agree(int(is_missing(run_dir, step))):
        export(engine, config, candidate(run_dir, step), engine.rank, step)


def export_checkpoint(
    run_dir: Path, config: Config, step: int | None, folder: Path, *, adapter: bool = False
) -> int:
    """Write the model of the checkpoint of `step` (default: the newest) to `folder`, with `learner.lora` the
    merged one, or with `adapter` only the adapter; returns the step. Raises RunError when the checkpoint is
    missing or damaged, or the folder is not empty, and ConfigError for an adapter of a run that trained full
    weights."""
    if adapter and config.learner.lora is None:
        raise ConfigError(
            f"--adapter: {run_dir} trained full weights (learner.lora: null), it has no adapter; leave "
            "--adapter out"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder}: exists and is not empty; choose another folder")
    chosen, weights = checkpoint_weights(run_dir, config.run.name, step)
    weights = {name: t.to(DTYPES[config.model.dtype]) for name, t in weights.items()}
    if config.learner.lora is not None:
        weights = {published_name(name): t for name, t in weights.items() if PARAMETER.match(name)}
    _write(weights, config, chosen, folder, adapter=adapter)
    return chosen


def checkpoint_weights(run_dir: Path, run: str, step: int | None) -> tuple[int, dict[str, torch.Tensor]]:
    """The step (default: the newest) and the trained parameters of a checkpoint, by the policy's names.

    Raises RunError when the checkpoint is missing or damaged. DeepSpeed's state contains pickles, so nothing
    is loaded before the manifest is verified."""
    steps = steps_in(run_dir / "checkpoints")
    if not steps:
        raise RunError(
            f"{run_dir}: has no checkpoint yet (learner.checkpoint_every says when one is written)"
        )
    chosen = max(steps) if step is None else step
    if chosen not in steps:
        raise RunError(
            f"{run_dir}: no checkpoint of step {chosen}; there are: {', '.join(map(str, sorted(steps)))}"
        )
    try:
        verified(steps[chosen], read_secret(run_dir), run, chosen)
    except Refused as refused:
        others = ", ".join(f"--step {step}" for step in sorted(steps) if step != chosen)
        raise RunError(
            f"{steps[chosen]}: {refused}; nothing of it is loaded{f', try {others}' if others else ''}"
        ) from None
    weights = _weights(steps[chosen] / TAG)
    return chosen, {name.removeprefix(OF_ENGINE): t for name, t in weights.items()}


def _weights(state: Path) -> dict[str, torch.Tensor]:
    """All trained parameters of a verified checkpoint, unsharded, by the engine's names."""
    if not list(state.glob("*_optim_states.pt")):  # without ZeRO one file holds all
        # Unpickling can execute code from the file, and DeepSpeed's state holds objects that weights_only
        # refuses. Loading is safe here: the caller has compared every file with the checksums of a manifest
        # that is signed with the run's secret, so this run's learner wrote the file.
        saved = torch.load(state / "mp_rank_00_model_states.pt", map_location="cpu", weights_only=False)
        return dict(saved["module"])
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    with contextlib.redirect_stdout(io.StringIO()):  # DeepSpeed prints progress
        return dict(
            get_fp32_state_dict_from_zero_checkpoint(
                str(state.parent), tag=state.name, exclude_frozen_parameters=True
            )
        )


def _write(
    tensors: Tensors,
    config: Config,
    step: int,
    folder: Path,
    hf: PreTrainedModel | None = None,
    *,
    adapter: bool = False,
) -> None:
    """Write a whole model of `tensors`; with `learner.lora` they are its adapter's, which is merged with the
    base or, with `adapter`, written alone. `hf` gives names and buffers; None: it is loaded."""
    model, lora, run = config.model, config.learner.lora, config.run.name
    if adapter and lora is not None:
        with _complete(folder, run, step, weights_digest(Path(model.path))) as partial:
            write_adapter(partial, tensors, model.path, lora)
        return
    hf = hf or load_model(model, config.learner)
    if lora is not None:
        merge(hf, tensors, lora.scale)
        tensors = dict(hf.named_parameters())
    parameters = {name: tensors[name] for name, _ in hf.named_parameters()}
    with _complete(folder, run, step) as partial:
        hf.save_pretrained(partial, state_dict={**parameters, **_buffers(hf)})
        tokenizer = load_tokenizer(model.path, model.trust_remote_code)
        tokenizer.chat_template = config.evaluated.data.chat_template or tokenizer.chat_template
        tokenizer.save_pretrained(partial)
        if (generation := Path(model.path) / "generation_config.json").is_file():
            shutil.copy(generation, partial)


def _buffers(hf: PreTrainedModel) -> dict[str, torch.Tensor]:
    """State besides parameters, such as a router's correction. Buffers are neither trained nor sharded by
    ZeRO-3; without them a loaded model would start with new ones."""
    parameters = {name for name, _ in hf.named_parameters(remove_duplicate=False)}
    return {name: t.detach().cpu() for name, t in hf.state_dict().items() if name not in parameters}


@contextlib.contextmanager
def _complete(folder: Path, run: str, step: int, base: str | None = None) -> Iterator[Path]:
    """A temporary folder that replaces `folder` at the end of the block, so that is complete or unchanged."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    write_origin(partial, run, step, base)
    sync_tree(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
