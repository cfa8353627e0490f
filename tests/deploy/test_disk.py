"""What a run takes of the disk is known before it starts."""

import pytest
from transformers import AutoConfig, Qwen2Config

from common.load import load
from deploy.preflight import disk, machine
from deploy.preflight.findings import Target
from tests.support.preflight import Make, one


def test_checkpoints_that_do_not_fit_the_disk_are_found(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "model_gib", lambda path: 1e6)
    [finding] = one(disk.disk, Target(config())).values()
    assert finding.level == "fail"
    assert "keep_checkpoints" in finding.fix


def test_what_200_steps_of_7b_take_is_said_before_they_start(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen2.5-7B has 7.6 billion parameters; AdamW keeps a float32 copy and two moments beside bfloat16."""
    sizes = {"hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944, "vocab_size": 152064}
    seven = Qwen2Config(**sizes, num_attention_heads=28, num_key_value_heads=4)
    assert disk.parameters(seven) == pytest.approx(7.615e9, rel=0.002)
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: seven)
    monkeypatch.setattr(disk, "model_gib", lambda path: 0.0)
    chosen = load("qwen2.5-7b")
    parts = {use.what: use.gib for use in disk.uses(chosen)}
    assert parts["model"] == pytest.approx(14.2, rel=0.01)
    assert parts["checkpoints"] == pytest.approx(14.2 * 7 * (chosen.learner.keep_checkpoints + 1), rel=0.01)
    [said] = disk.forecast(Target(chosen))
    assert said.says.startswith(f"{chosen.learner.steps} steps take about")
    assert "(learner.keep_checkpoints)" in said.says
    more = load("qwen2.5-7b", ["learner.keep_checkpoints=9"])
    assert sum(u.gib for u in disk.uses(more)) > sum(parts.values())


def test_a_model_whose_size_is_unknown_is_said(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    [said] = disk.forecast(Target(load("qwen2.5-7b", ["model.path=nobody/nothing-here"])))
    assert "size is not known here" in said.says


def test_the_formula_agrees_with_the_files_of_a_model(config: Make) -> None:
    of = AutoConfig.from_pretrained(config().model.path)
    assert disk.parameters(of) * 4 / machine.GIB == pytest.approx(
        machine.model_gib(config().model.path), rel=0.03
    )
