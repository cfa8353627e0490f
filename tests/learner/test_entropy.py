"""The entropy bonus: its controller, its gradient, and which tokens it and the policy act on."""

import numpy as np
import pytest
import torch

from hora_rl.common.config import Objective
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.deploy.checks.configuration import context
from hora_rl.deploy.checks.findings import Target
from hora_rl.learner.entropy import EntropyControl, threshold
from hora_rl.learner.head import scored


def test_a_constant_coefficient_stays() -> None:
    control = EntropyControl(Objective(entropy_coef=0.3))
    control.observe(0.01)
    assert control.coefficient == 0.3


def test_the_coefficient_grows_below_the_target_and_falls_above_it_within_its_bounds() -> None:
    control = EntropyControl(
        Objective(entropy_target=1.0, entropy_coef=0.01, entropy_coef_max=0.018, entropy_coef_delta=0.004)
    )
    assert control.coefficient == 0.0, "nothing was measured yet"
    seen = []
    for entropy in (0.9, 0.9, 0.9, 1.1, 0.9, 1.0):
        control.observe(entropy)
        seen.append(control.coefficient)
    assert seen == pytest.approx([0.014, 0.018, 0.018, 0.0, 0.018, 0.018])
    for _ in range(9):
        control.observe(2.0)
    control.observe(0.5)
    assert control.coefficient == pytest.approx(0.004)


def test_a_restored_controller_continues_bit_by_bit() -> None:
    objective = Objective(entropy_target=1.0)
    one, two = EntropyControl(objective), EntropyControl(objective)
    for entropy in (0.4, 1.3, 0.7):
        one.observe(entropy)
    two.load_state_dict(one.state_dict())
    one.observe(0.2)
    two.observe(0.2)
    assert one.state_dict() == two.state_dict()


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_threshold_is_the_quantile_of_all_micro_batches_together(share: float) -> None:
    values = np.random.default_rng(0).exponential(size=101).astype(np.float32)
    parts = [torch.from_numpy(p) for p in np.split(values, [7, 60])]
    least = threshold(parts, share, 1)
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


def test_a_target_above_the_entropy_of_the_vocabulary_is_refused() -> None:
    list(context(Target(load("tiny", ["learner.objective.entropy_target=5.5"]))))  # log(262) = 5.57
    with pytest.raises(ConfigError, match=r"learner.objective.entropy_target \(5.6\) exceeds log\(262\) ="):
        list(context(Target(load("tiny", ["learner.objective.entropy_target=5.6"]))))
