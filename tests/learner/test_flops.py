"""What a step computes, counted by hand; MFU only where the device's peak is known."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3Config, Qwen3MoeConfig

from hora_rl.learner.flops import Shape, peak_flops
from tests.support.samples import sized as sample
from tests.support.tiny_qwen2 import without_weights


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_where_they_compute(tied: bool) -> None:
    # q, k and v with bias, o, MLP, two norms
    layer = 8 * 8 + 8 + 2 * (8 * 4 + 4) + 8 * 8 + 3 * 8 * 16 + 2 * 8
    assert Shape.of(without_weights(64, 8, 16, 2, 2, 1, tied)) == Shape(
        body=2 * layer + 8, head=64 * 8, width=2 * 8
    )


def test_flops_are_six_per_weight_and_token_and_half_of_attention() -> None:
    shape = Shape(body=100, head=10, width=3)
    assert shape.flops([[sample(2, 3)]]) == 6 * (100 * 5 + 10 * 3 + 3 * 25)
    assert shape.flops([[sample(2, 3)], [sample(1, 1)]]) == 6 * (575 + 30) + 6 * (200 + 10 + 12)
    assert shape.flops([]) == 0


def test_a_shared_prompt_counts_once() -> None:
    shape = Shape(body=100, head=10, width=3)
    # 7 tokens, 5 logits; of twice the pairs 4 in the prompt, and 5² - 2² and 4² - 2² of the completions.
    assert shape.flops([[sample(2, 3), sample(2, 2)]]) == 6 * (100 * 7 + 10 * 5 + 3 * (4 + 21 + 12))
    assert shape.even == 100 / (2 * 3)


@pytest.mark.parametrize(
    ("device", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "float16", 312e12),
        ("NVIDIA H200", "float32", None),
        ("NVIDIA H200 MIG 1g.18gb", "bfloat16", None),
        ("", "bfloat16", None),
    ],
)
def test_the_peak_is_that_of_the_named_device(device: str, dtype: str, peak: float | None) -> None:
    assert peak_flops(device, dtype) == peak


EXPERTS, SENT, HIDDEN, EACH, HEADS, HEAD = 8, 2, 16, 8, 4, 8


def test_of_a_mixture_the_experts_count_that_a_token_is_sent_to() -> None:
    sizes = {"vocab_size": 64, "hidden_size": HIDDEN, "moe_intermediate_size": EACH, "num_hidden_layers": 1}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD}
    config = Qwen3MoeConfig(**sizes, **heads, num_experts=EXPERTS, num_experts_per_tok=SENT)
    attention = 4 * HIDDEN * HEADS * HEAD + 2 * HEAD  # q, k, v, o; norms of q and k
    layer = attention + EXPERTS * HIDDEN + SENT * 3 * HIDDEN * EACH + 2 * HIDDEN  # router, experts, norms
    with torch.device("meta"):
        found = Shape.of(AutoModelForCausalLM.from_config(config))
    assert found == Shape(body=layer + HIDDEN, head=64 * HIDDEN, width=HEADS * HEAD)


def test_a_model_with_a_part_for_images_has_the_shape_of_its_text() -> None:
    text = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(text_config={**text, **heads}, vision_config={**vision, "image_size": 28})
    with torch.device("meta"):
        found = Shape.of(AutoModelForCausalLM.from_config(config))
    assert (found.head, found.width) == (64 * 16, 2 * 2 * 8)
