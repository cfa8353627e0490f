"""Entropy: its gradient, and the threshold of the tokens that the policy acts on."""

import numpy as np
import pytest
import torch

from hora_rl.learner.head import scored
from hora_rl.learner.totals import threshold


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_threshold_is_the_quantile_of_all_micro_batches_together(share: float) -> None:
    values = np.random.default_rng(0).exponential(size=101).astype(np.float32)
    parts = [torch.from_numpy(p) for p in np.split(values, [7, 60])]
    least = threshold(parts, share)
    assert least == pytest.approx(np.quantile(values, 1 - share))
    kept = sum(int((p >= least).sum()) for p in parts)
    assert kept == pytest.approx(share * 101, abs=1)


def test_entropy_has_a_gradient_only_where_it_is_asked_for() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.zeros(5, dtype=torch.long)
    assert not scored(logits, targets, 0.7)[1].requires_grad
    entropy = scored(logits, targets, 0.7, entropy_gradient=True)[1]
    [found] = torch.autograd.grad(entropy.sum(), logits)
    plain = torch.distributions.Categorical(logits=logits / 0.7).entropy()
    torch.testing.assert_close(entropy, plain)
    torch.testing.assert_close(found, torch.autograd.grad(plain.sum(), logits)[0])
