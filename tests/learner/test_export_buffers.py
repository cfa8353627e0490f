"""What a model's file holds besides parameters survives an export, or a loaded model computes otherwise."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.models.glm4_moe import Glm4MoeConfig

from learner.export import _buffers


def test_a_model_that_is_written_by_its_parameters_computes_the_same_when_loaded(tmp_path: Path) -> None:
    config = Glm4MoeConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        moe_intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        n_routed_experts=8,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
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
