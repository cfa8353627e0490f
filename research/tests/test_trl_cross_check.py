"""TRL and ours get the same prompts, rewards and settings."""

from pathlib import Path

import pytest

from hora_rl.common.data.prompt_order import Mixture, mixed_rows
from hora_rl.common.data.prompts import load_tokenizer
from research.trl_cross_check import _arguments, _ordered, _rewards, prepare


def test_both_sides_get_the_same_prompts_rewards_and_settings(tmp_path: Path) -> None:
    small = ["rollout.prompts_per_batch=16", "rollout.group_size=8", "rollout.pre_rollouts=4"]
    config = prepare(tmp_path / "out", "tiny", ["learner.steps=3", *small])
    assert prepare(tmp_path / "out", "tiny", []) == config
    rows = _ordered(config, seed=5)
    indices = [row for b in range(3) for _, row in mixed_rows(b, 16, Mixture((2000,)), 5)]
    assert [r.index for r in rows] == indices
    arguments = _arguments(tmp_path, config, seed=5)
    assert arguments.learning_rate == config.learner.optimizer.learning_rate
    assert arguments.generation_batch_size == 16 * 8
    assert (arguments.loss_type, arguments.beta, arguments.weight_decay) == ("dr_grpo", 0.0, 0.0)
    tokenizer = load_tokenizer(config.model.path)
    texts = ["<think>x</think><answer>7</answer><eos>", "<answer>7.0</answer><eos>", "<answer>8</answer>"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    judged = [f(completion_ids=ids, gold=["7"] * 3) for f in _rewards(config, tokenizer)]
    assert judged == [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    with pytest.raises(SystemExit, match="has its settings already"):
        prepare(tmp_path / "out", "tiny", ["learner.steps=4"])
