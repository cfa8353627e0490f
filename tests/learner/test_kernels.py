"""`learner.kernels: liger` is refused where it cannot be, and never left out without a word."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.deploy.checks import configuration
from hora_rl.deploy.checks.findings import Target
from hora_rl.learner import kernels
from hora_rl.learner.kernels import FAMILIES, check_liger_here, use_liger
from tests.support.checks import one
from tests.support.families import model_of

LIGER = load("tiny", ["learner.kernels=liger"])
CARD: Any = SimpleNamespace(type="cuda")
OTHERS = [*((family, {}) for family in ("gemma2", "cohere", "gpt2")), ("llama", {"hidden_act": "gelu"})]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())


def test_a_missing_package_and_a_missing_card_are_one_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^learner\.kernels \(liger\): .* HORA_SET=gpu .*torch$"):
        check_liger_here(cards=True)
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    with pytest.raises(ConfigError, match=r"^learner\.kernels \(liger\): .* GPUs.*torch$"):
        check_liger_here(cards=False)
    check_liger_here(cards=True)


@pytest.mark.parametrize(("family", "more"), OTHERS)
def test_a_family_or_an_activation_that_was_not_compared_is_refused(
    family: str, more: dict[str, str], installed: None
) -> None:
    with pytest.raises(ConfigError, match=rf"the model is {family} with .*; set learner\.kernels: torch"):
        use_liger(model_of(family, **more), CARD)


def test_check_refuses_what_a_rank_would(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "gpus", list)
    [refused] = one(configuration.packages, Target(LIGER)).values()
    assert refused.level == "fail"
    assert "this machine has none" in refused.line
    assert one(configuration.packages, Target(LIGER, "train")) == {}, "the cluster's cards are elsewhere"
    assert one(configuration.packages, Target(LIGER, "eval")) == {}
    monkeypatch.setattr(configuration, "gpus", lambda: ["H100, 81559 MiB"])
    assert one(configuration.packages, Target(LIGER)) == {}
    assert one(configuration.family, Target(LIGER))["family"].level == "ok"
    monkeypatch.setattr(kernels, "FAMILIES", ("llama",))
    assert one(configuration.family, Target(LIGER))["family"].level == "fail"


@pytest.mark.system
def test_a_rank_without_a_card_is_refused_before_it_trains(installed: None, tmp_path: Any) -> None:
    from hora_rl.learner.engine import Engine

    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match=r"^learner\.kernels \(liger\): "):
            Engine(LIGER, 0, 1)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_package_replaces_norms_and_feed_forward_layers_and_leaves_the_head(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("liger_kernel", reason="liger-kernel is of the GPU set")
    hf = model_of(family)
    module = sys.modules[type(hf).__module__]
    for name in ("apply_rotary_pos_emb", *(n for n in vars(module) if n.endswith(("RMSNorm", "MLP")))):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back after the test
    plain, forward = module.apply_rotary_pos_emb, type(hf).forward
    use_liger(hf, CARD)
    names = [m._get_name() for m in hf.modules()]
    layers = hf.config.num_hidden_layers
    assert sum(name == "LigerRMSNorm" for name in names) >= 2 * layers + 1
    assert sum(name.endswith("SwiGLUMLP") for name in names) == layers
    assert not [n for n in names if n.endswith(("RMSNorm", "MLP")) and not n.startswith("Liger")]
    assert module.apply_rotary_pos_emb is not plain
    assert type(hf).forward is forward
    assert "forward" not in vars(hf)
