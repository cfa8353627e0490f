"""What a step reports, from groups and sums; what it computes, counted by hand; which updates moved the
policy too far."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3Config, Qwen3MoeConfig

from hora_rl.common.config import Config
from hora_rl.common.records import moved, moves
from hora_rl.common.types import Group, Phase, VersionSpan
from hora_rl.deploy.checks.estimate import ModelShape
from hora_rl.learner.model.flops import Shape, peak_flops
from hora_rl.learner.records.recorder import step_metrics
from hora_rl.learner.rows.batch import measurable
from tests.support.groups import group, rollout
from tests.support.samples import sized as sample
from tests.support.tiny_qwen2 import without_weights

CONFIG = Config.model_validate({"model": {"path": "m"}, "data": {"path": "arithmetic"}})
EXPERTS, SENT, HIDDEN, EACH, HEADS, HEAD = 8, 2, 16, 8, 4, 8


def of_accuracies(index: int, accuracies: list[float], version: int = 3) -> Group:
    spans = [VersionSpan(version, 0, 1), VersionSpan(version + 1, 1, 4)]
    return group(index, [rollout([1] * 4, spans=spans, success=a == 1.0) for a in accuracies])


def of_phases(*versions: tuple[Phase, int]) -> Group:
    spans = [(phase, [VersionSpan(version, 0, 2)]) for phase, version in versions]
    return group(0, [replace(rollout([1, 1], spans=each), phase=phase) for phase, each in spans])


def said(n: int, logprob: float, *, success: bool = False) -> Group:
    return group(0, [rollout([1] * n, logprobs=logprob, success=success)])


ONE = [of_accuracies(0, [1.0])]
PACKED = {"tokens": 90.0, "processed": 100.0, "flops": 900.0, "rank_flops_max": 540.0}
CASES = {
    "success is a mean over prompts": (
        [*ONE, of_accuracies(1, [1.0, 0.0, 0.0, 0.0])],
        {},
        {"success": 0.625},
    ),
    "groups without signal and of size one are counted": (
        [of_accuracies(i, each) for i, each in enumerate(([1.0], [0.0, 0.0], [1.0, 0.0], [1.0] * 9))],
        {},
        {"groups/zero_signal": 0.75, "groups/size_one": 0.25, "groups/hit": 0.75},
    ),
    "without a trained token there is no mean": (ONE, {}, {"entropy/trained": math.nan, "padding/share": 0}),
    "rewards are means over prompts whatever the sizes": (
        [*ONE, of_accuracies(1, [0.0] * 99)],
        {},
        {"reward/accuracy": 0.5, "reward": 0.75, "rollouts": 100},
    ),
    "lag is per token, from the step's own version": (
        ONE,
        {},
        {"lag/mean": (2 + 1 + 1 + 1) / 4, "lag/max": 2},
    ),
    "means are over trained tokens, drift over matched ones": (
        ONE,
        {"tokens_trained": 8.0, "entropy": 4.0, "drift": 1.0, "drift_tokens": 2.0},
        {"entropy/trained": 0.5, "drift": 0.5},
    ),
    "entropy is estimated from all tokens, also of groups without signal": (
        [said(6, -0.1, success=True), said(2, -0.9)],
        {},
        {"entropy": (6 * 0.1 + 2 * 0.9) / 8},
    ),
    "groups whose phases sampled from other weights are counted": (
        [of_phases(("A", 3), ("B", 3)), of_phases(("A", 3), ("B", 4)), of_phases(("A", 3))],
        {},
        {"groups/mixed_phases": 1 / 3},
    ),
    "padding and imbalance come from all ranks": (
        ONE,
        {f"packing/{k}": v for k, v in PACKED.items()},
        {"padding/share": 0.1, "imbalance": 54 / 45 - 1},
    ),
}


@pytest.mark.parametrize(("groups", "sums", "wanted"), CASES.values(), ids=CASES)
def test_a_metric_is_what_its_page_says(groups: list[Group], sums: dict, wanted: dict) -> None:
    result = step_metrics(5, groups, sums, CONFIG, ranks=2, grad_norm=1.0, learning_rate=0.1)
    assert {name: result[name] for name in wanted} == pytest.approx(wanted, nan_ok=True)


def test_successes_are_not_shown_where_no_reward_defines_them() -> None:
    none = CONFIG.model_copy(update={"reward": CONFIG.reward.model_copy(update={"success": None})})
    result = step_metrics(5, ONE, {}, none, ranks=2, grad_norm=1.0, learning_rate=0.1)
    assert not {"success", "groups/hit"} & result.keys()


def test_drift_can_be_measured_on_a_few_rollouts_with_tokens_of_a_version_whatever_they_earned() -> None:
    groups = [of_accuracies(i, [1.0] if i != 1 else [0.0] * 3, version=3 + i) for i in range(3)]
    result = measurable(groups, version=5, enough=10)
    later, first = [False, True, True, True], [True, False, False, False]
    assert [s.match.tolist() for s in result] == [later] * 3 + [first]
    assert all(s.scale == s.advantage == 0.0 for s in result)
    assert len(measurable(groups, version=5, enough=4)) == 2
    assert len(measurable(groups, version=5, enough=100)) == 4
    assert measurable(groups, version=7, enough=2) == []


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_where_they_compute(tied: bool) -> None:
    # q, k and v with bias, o, MLP, two norms
    layer = 8 * 8 + 8 + 2 * (8 * 4 + 4) + 8 * 8 + 3 * 8 * 16 + 2 * 8
    result = Shape.of(without_weights(64, 8, 16, 2, 2, 1, tied))
    assert result == Shape(body=2 * layer + 8, head=64 * 8, width=2 * 8)


def test_flops_are_six_per_weight_and_token_and_half_of_attention_and_a_shared_prompt_counts_once() -> None:
    shape = Shape(body=100, head=10, width=3)
    assert shape.flops([[sample(2, 3)]]) == 6 * (100 * 5 + 10 * 3 + 3 * 25)
    assert shape.flops([[sample(2, 3)], [sample(1, 1)]]) == 6 * (575 + 30) + 6 * (200 + 10 + 12)
    assert shape.flops([]) == 0
    # A shared prompt counts once: 7 tokens, 5 logits; of twice the pairs 4 in it, 5² - 2² and 4² - 2² after.
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


def test_of_a_mixture_the_experts_count_that_a_token_is_sent_to() -> None:
    sizes = {"vocab_size": 64, "hidden_size": HIDDEN, "moe_intermediate_size": EACH, "num_hidden_layers": 1}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD}
    config = Qwen3MoeConfig(**sizes, **heads, num_experts=EXPERTS, num_experts_per_tok=SENT)
    attention = 4 * HIDDEN * HEADS * HEAD + 2 * HEAD  # q, k, v, o; norms of q and k
    layer = attention + EXPERTS * HIDDEN + SENT * 3 * HIDDEN * EACH + 2 * HIDDEN  # router, experts, norms
    with torch.device("meta"):
        result = Shape.of(AutoModelForCausalLM.from_config(config))
    assert result == Shape(body=layer + HIDDEN, head=64 * HIDDEN, width=HEADS * HEAD)


def test_a_model_with_a_part_for_images_has_the_shape_of_its_text() -> None:
    text = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(text_config={**text, **heads}, vision_config={**vision, "image_size": 28})
    with torch.device("meta"):
        result = Shape.of(AutoModelForCausalLM.from_config(config))
    assert (result.head, result.width) == (64 * 16, 2 * 2 * 8)


def test_layers_of_two_head_sizes_each_count_with_their_own() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "global_head_dim": 16}
    kinds = {"layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
    with torch.device("meta"):
        hf = AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma4_text", **sizes, **heads, **kinds))
    assert Shape.of(hf).width == 2 * (2 * 8) + 2 * 16
    estimated = ModelShape.of(hf, None)
    assert (estimated.kv_width, estimated.query_width) == (16, 64 // 3)


Metrics = dict[str, float | None]


def at(step: int, entropy: float | None, capped: float | None = 0.0) -> Metrics:
    return {"step": step, "entropy/trained": entropy, "importance/capped": capped}


@pytest.mark.parametrize(
    ("before", "now", "far"),
    [
        ((1.12, 0.0), (0.55, 0.0), True),
        ((1.12, 0.0), (0.70, 0.0), False),
        ((0.55, 0.0), (1.12, 0.0), False),
        ((0.31, 0.0), (0.08, 0.0), False),  # a small one halves from batch to batch
        ((1.12, 0.0), (1.10, 0.12), True),
        ((1.12, 0.5), (1.10, 0.01), False),
        ((None, None), (0.5, None), False),
        ((1.12, 0.0), (None, 0.0), False),  # no token was trained
    ],
)
def test_an_entropy_that_halves_or_weights_at_their_cap_are_a_move(before, now, far) -> None:
    assert bool(moved(at(0, *before), at(1, *now))) is far


def test_every_move_of_a_run_is_named_by_its_step() -> None:
    assert moved({}, at(0, 0.01)) == ""
    assert moves([]) == moves([at(0, 0.01)]) == [], "a first step is compared with nothing"
    warnings = moves([at(0, 1.12), at(1, 0.55), at(2, 0.5), at(3, 0.2), at(4, 0.2, 0.3)])
    assert [text.partition(":")[0] for text in warnings] == ["step 1", "step 3", "step 4"]
    assert all("learner.optimizer.warmup_steps" in text for text in warnings)
