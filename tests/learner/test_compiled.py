"""Compiled layers and head have the eager gradient, in few compilations."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo import config, utils
from torch.fx.experimental import _config as shapes

from hora_rl.learner.model.cuda_kernels import compile_policy
from hora_rl.learner.model.logprobs import Policy
from tests.learner.test_exactness import TEMPERATURE, batch, estimator, policy
from tests.support.formula import apart, by_cut, by_formula
from tests.support.samples import ALWAYS


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Errors are shown rather than passed over; no compilation stays, nor one that was killed."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    kept = config.recompile_limit, config.suppress_errors, shapes.use_duck_shape
    torch._dynamo.reset()
    utils.counters.clear()
    yield
    config.recompile_limit, config.suppress_errors, shapes.use_duck_shape = kept
    torch._dynamo.reset()


def compiled(backend: str, *, again: bool = False) -> Policy:
    made = policy()
    if again:
        made.hf.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        made.hf.train()
    compile_policy(made, backend)
    config.suppress_errors = False
    return made


@pytest.mark.parametrize(
    ("backend", "again"),
    [("aot_eager", False), ("aot_eager", True), pytest.param("inductor", False, marks=pytest.mark.system)],
)
@pytest.mark.timeout(500)
def test_the_gradient_is_the_formulas_for_any_cut(compiler: None, backend: str, again: bool) -> None:
    groups = batch(1, 2, 5)
    wanted = by_formula(policy(), groups, estimator(), TEMPERATURE)
    made = compiled(backend, again=again)
    for cut in ((48, None, 1), (100, ALWAYS, 1), (777, None, 1), (300, ALWAYS, 2)):
        made.zero_grad()
        assert apart(by_cut(made, groups, estimator(), TEMPERATURE, *cut), wanted) < 1e-5, cut
    counted = dict(utils.counters["stats"])
    assert not utils.counters["graph_break"], dict(utils.counters["graph_break"])
    # Layer: mask or none, one row or several, and the head's two functions; for all layers together.
    assert 0 < counted["unique_graphs"] <= 12, counted


def test_the_models_own_forward_stays_eager(compiler: None) -> None:
    from hora_rl.learner.rows.batch import make_micro_batch
    from tests.learner.test_logprobs import rows
    from tests.support.tiny_qwen2 import tiny_qwen2

    made = Policy(tiny_qwen2(5000))
    compile_policy(made, "aot_eager")
    micro = make_micro_batch(rows())
    with torch.no_grad():
        own = made(micro, 0.7, 16, by_model=True)[0]
        assert not utils.counters["stats"]
        torch.testing.assert_close(made(micro, 0.7, 16)[0], own, rtol=1e-5, atol=1e-5)
    assert utils.counters["stats"]["unique_graphs"]
