"""What a model's file holds besides parameters survives an export, or a loaded model computes otherwise."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from hora_rl.learner.export import _buffers
from tests.support.families import glm4_moe


def test_a_model_that_is_written_by_its_parameters_computes_the_same_when_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(glm4_moe()).eval()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=3.0)
    parameters = dict(model.named_parameters())
    assert [name.rpartition(".")[2] for name in _buffers(model)] == ["e_score_correction_bias"]
    ids = torch.arange(12)[None]
    wanted = model(input_ids=ids).logits
    for state, same in (({**parameters, **_buffers(model)}, True), (parameters, False)):
        model.save_pretrained(tmp_path / str(same), state_dict=state)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / str(same)).eval()
        assert torch.allclose(loaded(input_ids=ids).logits, wanted, atol=1e-5) is same
