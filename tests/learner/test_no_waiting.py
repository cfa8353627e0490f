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
from hora_rl.learner.model.objective import Task
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
        {"ratio": "sequence", "importance": "sequence_mask", "kl": 0.1},
        {"loss": "cispo", "aggregate": "token", "importance": "token_mask", "entropy_coef": 0.1},
    ],
    ids=str,
)
def test_a_micro_batch_reads_nothing_from_the_device(options: dict[str, Any], shared: bool) -> None:
    rng, objective = np.random.default_rng(0), ObjectiveConfig.model_validate(options)
    samples = [sample([1, 2, 3], rng.integers(0, 60, n), -4.0, 1.0 - n % 3) for n in (5, 9, 3)]
    micro = make_micro_batch([samples] if shared else [[s] for s in samples])
    policy = Policy(tiny_qwen2(64))
    policy.head.entropy_gradient = objective.rewards_entropy
    task = Task(micro, reference=micro.logprobs if objective.kl else None)
    with Waiting() as waiting:
        loss, sums = task.loss(*policy(micro, 0.7, 4), objective, acted=17.0)
        loss.backward()
    assert waiting.found == []
    assert sums["tokens_trained"] == 17
    with Waiting() as waiting:
        assert float(loss.detach()) == float(sums["loss"]) or objective.rewards_entropy
        assert micro.match[micro.match].all()
    assert len(waiting.found) >= 3, "what is looked for is seen"


@pytest.mark.parametrize("rewarded", [False, True])
def test_the_backward_pass_computes_the_entropy_again_only_for_its_gradient(rewarded: bool) -> None:
    policy = Policy(tiny_qwen2(64))
    head: Head = policy.head
    head.entropy_gradient = rewarded
    states = torch.randn(8, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    outputs = head(states, torch.arange(8), 0.7, 4)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.stack(outputs[: 1 + rewarded]).sum().backward()
    soft = sum(e.count for e in profile.key_averages() if e.key == "aten::softmax")
    assert soft == (2 if rewarded else 0)
