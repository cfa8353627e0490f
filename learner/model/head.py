"""The head of a causal language model: from hidden states to log-probs, one chunk of tokens at a time.

Families differ after the head's product: Granite divides the logits, Cohere multiplies them, Gemma-2 caps
them. So the path from hidden states to logits is the model class's `forward`, run with the backbone's output
supplied (`OwnPath`). A family whose `forward` has another shape is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from hora_rl.common.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class OwnPath:
    """Replaces `self` in the `forward` of a Hugging Face model, to run only the part after the backbone.

    The backbone returns the supplied hidden states, the head multiplies without a module call, and everything
    else is the model's. So under ZeRO-3 no module hook runs here, and no rank waits for another.
    """

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
    """A module with some parts replaced, and its call. Every other attribute is the module's, such as a
    factor that the model's `forward` reads from its backbone."""

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
    """Log-probs and entropy of hidden states. Shares the parameters of the model's head.

    One call of this module is one forward pass, for any number of chunks. Under ZeRO-3 every call of a module
    with parameters is a collective, so one call per chunk would hang ranks with different numbers of chunks.
    """

    def __init__(self, path: OwnPath) -> None:
        super().__init__()
        self.path = path
        self.weight, self.bias = path.head.weight, path.head.bias
        self.scored, self.log_probs = scored, log_probs  # compiled on a card

    def forward(
        self, states: torch.Tensor, targets: torch.Tensor, temperature: float, chunk: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """log π(targets) (N,) float32 at `temperature`, and entropy (N,) float32 without gradient, for states
        (N, H).

        Logits of at most `chunk` tokens exist at a time; the backward pass recomputes them.
        """
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
