"""Checks once, before the first step, that the learner computes the model's log-probs correctly.

A family may scale or cap its logits, or read positions from a mask. The learner would then train on wrong
log-probs without an error, so the first engine of a run compares a few tokens. The same comparison shows
whether completions of a family can share their prompt: a recurrent state would mix them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from hora_rl.common.config import LearnerConfig, ModelConfig
from hora_rl.common.errors import ConfigError, one_line
from hora_rl.common.model.model_files import own_configuration
from hora_rl.learner.model.loading import not_loaded
from hora_rl.learner.model.logprobs import Policy, unsupported
from hora_rl.learner.model.lora import check_targets
from hora_rl.learner.rows.batch import make_micro_batch
from hora_rl.learner.rows.packing import Row, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# Mean |difference| of log-probs that is always allowed, by the precision of the weights.
ALLOWED = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}
PROMPTS = {4: (20, 7), 6: (12,)}  # tokens of completions by those of their prompt: rows of unequal sizes
# Errors of a forward that does not fit `OwnPath`. Memory and device errors are RuntimeErrors.
MISFITS = (AttributeError, TypeError, ValueError, LookupError, NotImplementedError)

Scorer = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def check_agreement(
    dtype: str, temperature: float, policy: Policy, score: Scorer, device: torch.device
) -> str:
    """Raise ConfigError unless the policy's log-probs match the model's own forward on each single
    completion. Returns why completions cannot share a prompt; empty if they can.

    `dtype` is the model's. `score` calls `policy`; under ZeRO-3 pass the engine, and call this on every rank.
    Rounding differences in padded rows widen the tolerance, up to ten times."""

    @torch.no_grad()
    def scored(rows: Sequence[Row], *, by_model: bool = False) -> torch.Tensor:
        micro = make_micro_batch(rows).to(device)
        chunk = max(1, len(micro.targets) // 3)  # several chunks
        return score(micro, temperature, chunk, by_model=by_model)[0]

    rows = _rows(policy.hf.config.get_text_config().vocab_size)
    single = [[sample] for row in rows for sample in row]
    # This forward is first and the one as in training last: after two equal forwards without a backward,
    # ZeRO-3 would record them as the parameter order of a step and prefetch more from then on.
    try:
        shared, misfit = scored(rows), ""
    except MISFITS as error:
        misfit = one_line(error, 200)
    try:
        alone = torch.cat([scored([row], by_model=True) for row in single])
        padded, ours = scored(single, by_model=True), scored(single)
    except MISFITS as error:
        text = one_line(error, 200)
        raise unsupported(policy.hf, f"its forward has another shape ({text})") from None
    floor = ALLOWED[next(policy.hf.parameters()).dtype]
    allowed = min(max(floor, 3.0 * float((padded - alone).abs().mean())), 10.0 * floor)
    difference = float((ours - alone).abs().mean())
    if not difference <= allowed:
        raise unsupported(
            policy.hf,
            f"on {len(alone)} tokens its log-probs differ by {difference:.2e} in the mean from those of the "
            f"model's own forward, and {allowed:.2e} is allowed in {dtype}",
        )
    if misfit:
        return f"its forward takes no such mask ({misfit})"
    differs = float((shared - alone).abs().mean())
    return "" if differs <= allowed else f"its log-probs would differ by {differs:.2e} in the mean"


def check_family(source: ModelConfig, learner: LearnerConfig, temperature: float) -> tuple[str, str]:
    """Return the family name of `source.path`, and why its completions do not share a prompt (empty if
    they do). Raises ConfigError when the learner cannot train this family. Needs no weights.

    Compares a model of the same family with two layers and a small vocabulary. If no such model can be made,
    only the structure is checked, and the learner compares at its start."""
    if not torch.cuda.is_available():  # keeps DeepSpeed, which transformers loads, from printing
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from transformers import AutoModelForCausalLM

    trusted = source.trust_remote_code
    try:
        config = own_configuration(source)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trusted)
        family = type(model).__name__
        Policy(model)
        if learner.lora is not None:
            model.config.name_or_path = source.path
            check_targets(model, learner.lora)
    except ConfigError:
        raise
    except (OSError, ValueError, ImportError) as error:
        raise not_loaded(source, error) from None
    small = _small(config, trusted)
    if small is None:
        return family, ""
    small.config.name_or_path = source.path
    policy = Policy(small.eval())
    try:
        return family, check_agreement("float32", temperature, policy, policy, torch.device("cpu"))
    except RuntimeError as error:  # shapes that do not fit: so small a model never lacks memory
        raise unsupported(small, f"its forward fails ({one_line(error, 200)})") from None


def _rows(vocabulary: int) -> list[list[Sample]]:
    rng, rows = np.random.default_rng(0), []
    for size, lengths in PROMPTS.items():
        prompt = rng.integers(0, vocabulary, size).astype(np.int32)
        row = []
        for n in lengths:
            tokens = rng.integers(0, vocabulary, n).astype(np.int32)
            row.append(Sample(prompt, tokens, np.zeros(n, np.float32), 0.0, 0.0, np.zeros(n, dtype=bool)))
        rows.append(row)
    return rows


LAYERS, VOCABULARY, WIDTH = 2, 128, 64
ALONE = ("num_kv_shared_layers",)
"""Settings that a model of so few layers cannot have: those it would share with are cut off."""
MOST = 300_000_000  # parameters of a small model; mixtures of many experts have more


def _small(config: PreTrainedConfig, trusted: bool) -> PreTrainedModel:
    """A small random float32 model of the family of `config`; None if none can be made."""
    from transformers import AutoModelForCausalLM

    try:
        cut = _cut(config)
        with torch.device("meta"):
            shapes = AutoModelForCausalLM.from_config(cut, trust_remote_code=trusted)
        if sum(p.numel() for p in shapes.parameters()) > MOST:
            return None
        small = AutoModelForCausalLM.from_config(cut, dtype=torch.float32, trust_remote_code=trusted)
    except (*MISFITS, AssertionError, RuntimeError):
        return None
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for weight in (p for p in small.parameters() if p.dim() > 1):
            # Logits of about 1: with smaller ones all families agree.
            weight.normal_(std=weight.shape[-1] ** -0.5)
    return small


def _cut(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of a small model of the family: two layers, narrow, with a small vocabulary."""
    text = config.get_text_config()
    layers = text.num_hidden_layers
    for name, value in list(text.to_dict().items()):
        if isinstance(value, list) and len(value) == layers:
            setattr(text, name, value[:LAYERS])
        elif name.endswith("intermediate_size") and isinstance(value, int):
            setattr(text, name, min(value, WIDTH))
        elif name in ALONE or (name.endswith("token_id") and value is not None):
            setattr(text, name, 0)
    text.num_hidden_layers = min(layers, LAYERS)
    text.vocab_size = min(text.vocab_size, VOCABULARY)
    return config
