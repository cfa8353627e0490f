"""Log-probs and entropy are those of plain full logits, which themselves never exist."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from learner.batch import MicroBatch, Sample, make_micro_batch
from learner.logprobs import Policy
from tests.support.tiny_qwen2 import tiny_qwen2

VOCABULARY = 5000


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy(tiny_qwen2(VOCABULARY, initializer_range=0.2))


def sample(rng: np.random.Generator, prompt: int, length: int) -> Sample:
    ids = rng.integers(0, VOCABULARY, prompt + length).astype(np.int32)
    zeros = np.zeros(length, np.float32)
    return Sample(ids[:prompt], ids[prompt:], zeros, 1.0, 1.0, np.ones(length, dtype=bool))


def samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    return [sample(rng, p, n) for p, n in [(1, 1), (7, 30), (3, 2), (5, 29), (2, 64)]]


def full(policy: Policy, s: Sample, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.from_numpy(np.concatenate([s.prompt, s.tokens])).long()[None]
    logp = torch.log_softmax(policy.hf(ids).logits[0, len(s.prompt) - 1 : -1] / temperature, -1)
    entropy = torch.distributions.Categorical(logits=logp).entropy()
    return logp.gather(-1, ids[0, len(s.prompt) :, None])[:, 0], entropy


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_they_are_those_of_one_completion_alone(
    policy: Policy, packed: bool, chunk: int, temperature: float
) -> None:
    many = samples()
    with torch.no_grad():
        got = policy(make_micro_batch(many, packed), temperature, chunk)
        alone = [full(policy, s, temperature) for s in many]
    for ours, expected in zip(got, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(ours, torch.cat(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_no_completion_sees_another(policy: Policy, packed: bool) -> None:
    many = samples()
    rng = np.random.default_rng(1)
    changed = [sample(rng, len(s.prompt), len(s.tokens)) for s in many]
    changed[3] = many[3]
    at = slice(sum(len(s.tokens) for s in many[:3]), sum(len(s.tokens) for s in many[:4]))
    with torch.no_grad():
        one, other = (policy(make_micro_batch(x, packed), 1.0, 16)[0] for x in (many, changed))
    torch.testing.assert_close(one[at], other[at], rtol=1e-5, atol=1e-5)
    assert float((one[: at.start] - other[: at.start]).abs().max()) > 0.1


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
    micro = make_micro_batch(samples(), packed=True)
    assert len(micro.targets) == 126
    assert backward(policy, micro, 40) == 40  # above the 32 rows of the head's own transposed weight
    assert backward(policy, micro, 500) == 126  # what is measured is there when nothing bounds it


def test_the_gradient_does_not_depend_on_the_chunk(policy: Policy) -> None:
    micro = make_micro_batch(samples(), packed=True)
    gradients = []
    for chunk in (3, 500):
        backward(policy, micro, chunk)
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    assert float((gradients[0] - gradients[1]).norm() / gradients[1].norm()) < 1e-5


def test_entropy_carries_no_gradient(policy: Policy) -> None:
    logprobs, entropy = policy(make_micro_batch(samples(), packed=False), 1.0, 16)
    assert logprobs.requires_grad
    assert not entropy.requires_grad
