"""Log-probs and entropy of the sampled tokens, without ever holding all logits.

The backbone runs once over the tokens. The head and its softmax run over `chunk` tokens at a time and again
in the backward pass, so float32 logits of at most `chunk` x vocabulary exist at any moment.

Families differ after the head's product: Granite divides the logits, Cohere multiplies them, Gemma-2 caps
them. So the path from hidden states to logits is the model class's `forward`, run with the backbone's output
supplied (`OwnPath`). A family whose `forward` has another shape is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from hora_rl.common.errors import ConfigError
from hora_rl.learner.model.cuda_kernels import block_mask_of
from hora_rl.learner.model.flops import EXPERTS
from hora_rl.learner.rows.batch import MicroBatch
from hora_rl.learner.rows.packing import mask_of

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask
    from transformers import PreTrainedModel

VARIANTS = 64
"""Compilations of one function before torch runs it eagerly; its own limit is 8, as many as a layer has kinds
of call."""


class OwnPath:
    """Replaces `self` in the `forward` of a Hugging Face model, to run only the part after the backbone: that
    returns the supplied hidden states, the head multiplies without a module call, and everything else is the
    model's. So under ZeRO-3 no module hook runs here, and no rank waits for another."""

    def __init__(self, hf: PreTrainedModel) -> None:
        self._hf = hf
        self._backbone = hf.base_model_prefix
        if not hasattr(hf.config.get_text_config(), "num_attention_heads"):
            raise unsupported(hf, "it has no attention, by which the learner cuts its batches")
        head = hf.get_output_embeddings()
        names = [name for name, module in hf.named_children() if module is head]
        if type(head) is not torch.nn.Linear or not names or not hasattr(hf, self._backbone):
            raise unsupported(hf, "its head is not a linear layer over the output of one backbone")
        self.head, self._head = head, names[0]

    def backbone(self, **inputs: object) -> torch.Tensor:
        """Hidden states (B, T, H) of the last layer."""
        hidden: torch.Tensor = getattr(self._hf, self._backbone)(**inputs, use_cache=False).last_hidden_state
        return hidden

    def logits(
        self, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits (N, V) of hidden states (N, H)."""
        parts: dict[str, object] = {
            self._backbone: _Given(
                getattr(self._hf, self._backbone), {}, lambda *_, **__: _Output(states[None])
            ),
            self._head: _Given(self.head, {}, lambda hidden: functional.linear(hidden, weight, bias)),
        }
        model = _Given(self._hf, parts)
        logits: torch.Tensor = type(self._hf).forward(model, input_ids=None, use_cache=False).logits
        return logits[0]


class _Output:
    """A backbone's output: hidden states (B, T, H), also as the first item. Every other field is None."""

    def __init__(self, states: torch.Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, index: int) -> torch.Tensor | None:
        return self.last_hidden_state if index == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


class _Given:
    """A module with some parts replaced, and its call. Every other attribute is the module's."""

    def __init__(
        self, module: torch.nn.Module, parts: dict[str, object], call: Callable[..., object] | None = None
    ) -> None:
        self.__dict__.update(parts, _module=module, _call=call)

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)

    def __call__(self, *args: object, **kwargs: object) -> object:
        call: Callable[..., object] = self.__dict__["_call"]
        return call(*args, **kwargs)


class Head(torch.nn.Module):
    """Log-probs and entropy of hidden states, with the parameters of the model's head. One call is one
    forward pass, for any number of chunks: under ZeRO-3 every call of a module with parameters is a
    collective, so one per chunk would hang ranks with different numbers of chunks."""

    def __init__(self, path: OwnPath) -> None:
        super().__init__()
        self.path = path
        self.weight, self.bias = path.head.weight, path.head.bias
        self.scored, self.log_probs = scored, log_probs  # compiled on a card

    def forward(
        self, states: torch.Tensor, targets: torch.Tensor, temperature: float, chunk: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """log π(targets) (N,) float32 at `temperature`, and entropy (N,) float32 without gradient, for states
        (N, H). Logits of at most `chunk` tokens exist at a time; the backward pass recomputes them."""
        result: tuple[torch.Tensor, torch.Tensor] = _Chunks.apply(
            self, chunk, temperature, targets, states, self.weight, self.bias
        )
        return result

    def score(
        self,
        states: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `forward`, with all logits at once."""
        logits = self.path.logits(states, weight, bias)
        return self.scored(logits, targets, temperature)

    # Parameters are saved and loaded as those of the model's head.
    def _save_to_state_dict(self, *args: object, **kwargs: object) -> None:
        return

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        return


class _Chunks(torch.autograd.Function):
    """A head over chunks of tokens. Gradients of weight and bias are accumulated over chunks in float32: in
    16 bits small ones would be lost in the sum."""

    @staticmethod
    def forward(
        ctx: Any, head: Head, chunk: int, temperature: float, targets: torch.Tensor, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states, weight, bias = inputs
        ctx.head, ctx.chunk, ctx.temperature = head, chunk, temperature
        ctx.save_for_backward(targets, states)
        parts = zip(states.split(chunk), targets.split(chunk), strict=True)
        scores = [head.score(s, t, temperature, weight, bias) for s, t in parts]
        logprobs, entropy = (torch.cat(each) for each in zip(*scores, strict=True))
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any, gradient: torch.Tensor, _entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        head, wanted = ctx.head, ctx.needs_input_grad[5:]
        targets, states = ctx.saved_tensors
        # Read the parameters again: ZeRO-3 gathers them anew for the backward pass.
        pairs = zip((head.weight, head.bias), wanted, strict=True)
        leaves = [p.detach().requires_grad_(on) for p, on in pairs if p is not None]
        trained = [p for p in leaves if p.requires_grad]
        sums = [torch.zeros_like(p, dtype=torch.float32, requires_grad=False) for p in trained]
        of_states = torch.empty_like(states)
        for at in range(0, len(targets), ctx.chunk):
            part = slice(at, at + ctx.chunk)
            chunk = states[part].detach().requires_grad_()
            with torch.enable_grad():
                logits = head.path.logits(chunk, *leaves)
                # The entropy, without a gradient, would cost as much.
                logprobs = head.log_probs(logits, targets[part], ctx.temperature)[0]
            of_states[part], *of_leaves = torch.autograd.grad(logprobs, [chunk, *trained], gradient[part])
            for total in sums:
                total += of_leaves.pop(0)  # else the next chunk's would be beside it
        rest = iter(sums)
        of_head = (next(rest).to(states.dtype) if on else None for on in wanted)
        return None, None, None, None, of_states, *of_head


def scored(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """log π(targets) (N,) at `temperature`, and entropy (N,) without gradient, of logits (N, V)."""
    chosen, logits, log_z = log_probs(logits, targets, temperature)
    with torch.no_grad():
        entropy = log_z - (logits.softmax(-1) * logits).sum(-1)
    return chosen, entropy


def log_probs(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """log π(targets) (N,) at `temperature`, the logits (N, V) divided by it, and their log Z (N,)."""
    logits = logits.float() / temperature
    log_z = logits.logsumexp(-1)
    return logits.gather(-1, targets[:, None])[:, 0] - log_z, logits, log_z


def unsupported(hf: PreTrainedModel, reason: str) -> ConfigError:
    """The error that refuses a model's family by name."""
    return ConfigError(
        f"model.path ({hf.config.name_or_path or type(hf).__name__}): the learner cannot train "
        f"{type(hf).__name__} (model_type {hf.config.model_type}): {reason}; use another model"
    )


class Policy(torch.nn.Module):
    """A causal language model that returns log-probs. Everything runs inside modules, as ZeRO-3 requires.
    Raises ConfigError for an unsupported family."""

    def __init__(self, hf: PreTrainedModel) -> None:
        super().__init__()
        self.hf = hf
        self._path = OwnPath(hf)
        self.head = Head(self._path)
        self.blocks = False  # see cuda_kernels.use_block_masks

    def forward(
        self, micro: MicroBatch, temperature: float, chunk: int, by_model: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """log π(targets) (N,) float32 at `temperature`, and entropy (N,) float32 without gradient.
        `by_model`: all logits exist at once and come from the model's forward, for comparison."""
        where: dict[str, torch.Tensor | BlockMask] = {}
        if micro.ends is not None:  # else padding is at the right, where causal attention never looks
            mask = block_mask_of(micro.ends) if self.blocks else mask_of(micro.ends, self.hf.dtype)
            where = {"position_ids": micro.position_ids, "attention_mask": mask}
        if by_model:
            with torch.compiler.set_stance("force_eager"):
                logits = self.hf(input_ids=micro.input_ids, use_cache=False, **where).logits
            return scored(logits.flatten(0, 1)[micro.sources], micro.targets, temperature)
        with unpacked():
            hidden = self._path.backbone(input_ids=micro.input_ids, **where)
        states = hidden.flatten(0, 1)[micro.sources]
        result: tuple[torch.Tensor, torch.Tensor] = self.head(states, micro.targets, temperature, chunk)
        return result


@contextmanager
def unpacked() -> Iterator[None]:
    """Keep transformers from looking for sequences one behind the other in a row without a mask: there are
    none, and it would wait for the device in every forward pass."""
    from transformers import masking_utils

    look = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = look


def without_dropout(hf: PreTrainedModel) -> PreTrainedModel:
    """Prepare `hf` for training. Dropout would give log-probs that no sampler used. Layers recompute
    activations only in training mode, so they stay in that mode with their dropout set to 0."""
    hf.eval()
    for module in hf.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True
            for name, value in list(vars(module).items()):
                if "drop" in name and isinstance(value, float):
                    setattr(module, name, 0.0)
    return hf


def compile_policy(policy: Policy, backend: str = "inductor") -> None:
    """Compile layers and head in place, for any number of rows and tokens: eager layers spend a fifth of a
    step on a card on element-wise kernels. All layers of a family share one compilation for each kind of
    call; what torch cannot compile runs eagerly, with a warning. The eager path stays the reference
    (`check_agreement`). Not under ZeRO-3, whose hooks gather parameters inside the layers, and not experts:
    how many tokens each gets is known only on the device."""
    from torch._dynamo import config
    from torch.fx.experimental import _config as shapes
    from transformers.modeling_layers import GradientCheckpointingLayer

    hf, head = policy.hf, policy.head
    config.recompile_limit, config.suppress_errors = VARIANTS, True
    shapes.use_duck_shape = False  # else a width that equals another size would be compiled again
    head.scored = torch.compile(head.scored, dynamic=True, backend=backend)
    head.log_probs = torch.compile(head.log_probs, dynamic=True, backend=backend)
    if any(getattr(hf.config.get_text_config(), key, None) for key in EXPERTS):
        return
    for module in hf.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.compile(dynamic=True, backend=backend)
