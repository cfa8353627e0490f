"""Log-probs and entropy are those of plain full logits, which themselves never exist. Between the
first micro-batch's forward and the last one's backward nothing waits for the device: reading a number would
keep the processor from queueing the next work."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hora_rl.common.config import ObjectiveConfig
from hora_rl.learner.model.logprobs import Head, Policy, scored
from hora_rl.learner.model.objective import policy_loss
from hora_rl.learner.rows.batch import MicroBatch, make_micro_batch
from hora_rl.learner.rows.packing import Sample
from tests.support.samples import sample
from tests.support.tiny_qwen2 import tiny_qwen2

VOCABULARY = 5000


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(tiny_qwen2(VOCABULARY, initializer_range=0.2))


def row(rng: np.random.Generator, prompt: int, lengths: list[int]) -> list[Sample]:
    ids = rng.integers(0, VOCABULARY, prompt)
    return [sample(ids, rng.integers(0, VOCABULARY, n)) for n in lengths]


def rows(shared: bool = True) -> list[list[Sample]]:
    """Completions of 1 to 64 tokens in rows of unequal width, or each alone, in the same order."""
    rng = np.random.default_rng(0)
    made = [row(rng, 1, [1]), row(rng, 7, [30, 2, 9]), row(rng, 3, [64, 20])]
    return made if shared else [[each] for of_prompt in made for each in of_prompt]


def full(policy: Policy, s: Sample, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.from_numpy(np.concatenate([s.prompt, s.tokens])).long()[None]
    logp = torch.log_softmax(policy.hf(ids).logits[0, len(s.prompt) - 1 : -1] / temperature, -1)
    entropy = torch.distributions.Categorical(logits=logp).entropy()
    return logp.gather(-1, ids[0, len(s.prompt) :, None])[:, 0], entropy


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_they_are_those_of_a_completion_alone(
    policy: Policy, shared: bool, chunk: int, temperature: float
) -> None:
    many = rows(shared)
    with torch.no_grad():
        got = policy(make_micro_batch(many), temperature, chunk)
        alone = [full(policy, s, temperature) for row in many for s in row]
    for ours, expected in zip(got, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(ours, torch.cat(expected), rtol=1e-5, atol=1e-5)


class Widest(TorchDispatchMode):
    """The largest float tensor with a vocabulary dimension that any operation made, forward or backward."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for out in result if isinstance(result, tuple | list) else [result]:
            if isinstance(out, torch.Tensor) and out.dim() and out.shape[-1] == VOCABULARY:
                self.rows = max(self.rows, out.numel() // VOCABULARY)
        return result


def backward(policy: Policy, micro: MicroBatch, chunk: int) -> int:
    policy.zero_grad()
    with Widest() as widest:
        policy(micro, 0.7, chunk)[0].sum().backward()
    return widest.rows


def test_no_operation_makes_logits_of_more_than_a_chunk(policy: Policy) -> None:
    micro = make_micro_batch(rows())
    assert len(micro.targets) == 126
    assert backward(policy, micro, 40) == 40  # above the 32 rows of the head's own transposed weight
    assert backward(policy, micro, 500) == 126  # what is measured is there when nothing bounds it


@pytest.mark.parametrize("chunk", [1, 500])
def test_the_heads_gradient_in_16_bits_is_rounded_once_however_many_chunks(chunk: int) -> None:
    hf = tiny_qwen2(50, tie_word_embeddings=False).bfloat16()
    head, states = Policy(hf).head, torch.randn(300, 32, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(300) % 50
    head(states.bfloat16().requires_grad_(), targets, 1.0, chunk)[0].sum().backward()
    weight = head.weight.detach().double().requires_grad_()
    scored(states.bfloat16().double() @ weight.T, targets, 1.0)[0].sum().backward()
    error = (head.weight.grad.double() - weight.grad).norm() / weight.grad.norm()
    assert float(error) < 0.003


WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")


class Waiting(TorchDispatchMode):
    """Operations that would wait for a GPU, forward and backward: reading a scalar, and indexing by a mask,
    which must know how many are set."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        masks = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        if name in WAITS or any(i is not None and i.dtype == torch.bool for i in masks):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "gspo", "importance": "sequence_mask", "kl": 0.1},
        {"loss": "cispo", "importance": "token_mask"},
        {"loss": "sapo"},
    ],
    ids=str,
)
def test_a_micro_batch_reads_nothing_from_the_device(options: dict[str, Any], shared: bool) -> None:
    rng, objective = np.random.default_rng(0), ObjectiveConfig.model_validate(options)
    samples = [sample([1, 2, 3], rng.integers(0, 60, n), -4.0, 1.0 - n % 3) for n in (5, 9, 3)]
    micro = make_micro_batch([samples] if shared else [[s] for s in samples])
    policy = Policy(tiny_qwen2(64))
    with Waiting() as waiting:
        logprobs, _ = policy(micro, 0.7, 4)
        reference = micro.logprobs if objective.kl else None
        loss, sums = policy_loss(logprobs, logprobs.detach(), micro, objective, reference)
        loss.backward()
    assert waiting.found == []
    assert sums["tokens_trained"] == 17
    with Waiting() as waiting:
        assert float(loss.detach()) == float(sums["loss"])
        assert micro.match[micro.match].all()
    assert len(waiting.found) >= 3, "what is looked for is seen"


def test_the_backward_pass_does_not_compute_the_entropy_again() -> None:
    head: Head = Policy(tiny_qwen2(64)).head
    states = torch.randn(8, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    logprobs, entropy = head(states, torch.arange(8), 0.7, 4)
    assert not entropy.requires_grad
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        logprobs.sum().backward()
    assert not any(e.key == "aten::softmax" for e in profile.key_averages())
