"""Between the first micro-batch's forward and the last one's backward nothing waits for the device: reading a
number would keep the processor from queueing the next work."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hora_rl.common.config import ObjectiveConfig
from hora_rl.learner.model.head import Head
from hora_rl.learner.model.logprobs import Policy
from hora_rl.learner.model.objective import policy_loss
from hora_rl.learner.rows.batch import make_micro_batch
from tests.support.samples import sample
from tests.support.tiny_qwen2 import tiny_qwen2

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
