"""TRL and ours get the same prompts, rewards and settings."""

from pathlib import Path

import pytest

from benchmarks.against_trl import Cell, _arguments, _ordered, _rewards, prepare, report
from hora_rl.common.data.prompt_order import Mixture, mixed_rows
from hora_rl.common.data.prompts import load_tokenizer


def test_both_sides_get_the_same_prompts_rewards_and_settings(tmp_path: Path) -> None:
    small = ["rollout.prompts_per_batch=16", "rollout.group_size=8", "rollout.pre_rollouts=4"]
    config = prepare(tmp_path / "out", "tiny", ["learner.steps=3", *small])
    assert prepare(tmp_path / "out", "tiny", []) == config
    rows = _ordered(config, seed=5)
    indices = [row for b in range(3) for _, row in mixed_rows(b, 16, Mixture((2000,)), 5)]
    assert [r.index for r in rows] == indices
    arguments = _arguments(tmp_path, config, seed=5, at_once=8)
    assert arguments.learning_rate == config.learner.optimizer.learning_rate
    assert arguments.generation_batch_size == 16 * 8
    assert (arguments.loss_type, arguments.beta, arguments.weight_decay) == ("dr_grpo", 0.0, 0.0)
    tokenizer = load_tokenizer(config.model.path)
    texts = ["<think>x</think><answer>7</answer><eos>", "<answer>7.0</answer><eos>", "<answer>8</answer>"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    judged = [f(completion_ids=ids, gold=["7"] * 3) for f in _rewards(config, tokenizer)]
    assert judged == [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    with pytest.raises(SystemExit, match="out"):
        prepare(tmp_path / "out", "tiny", ["learner.steps=4"])


def test_rates_are_of_the_steps_after_the_first_and_pairs_are_by_seed() -> None:
    def cell(side: str, seed: int, reward: float, each: float) -> Cell:
        ended = [10.0, 10 + each, 10 + 2 * each]
        return Cell(side, seed, [reward] * 3, [0.5] * 3, ended, 40.0)

    text = report(
        [cell("trl", 1, 0.1, 4.0), cell("trl", 0, 0.3, 4.0)]
        + [cell("synchronous", 0, 0.5, 2.0), cell("synchronous", 1, 0.8, 2.0)]
        + [cell("ahead", seed, 0.5, 1.0) for seed in (0, 1)],
        per_step=8,
    )
    rates = [[" 2.0 ", " 1.00 "], [" 4.0 ", " 2.00 "], [" 8.0 ", " 4.00 "]]
    assert [line.split("|")[2:4] for line in text.splitlines()[2:5]] == rates
    # Differences 0.2 and 0.7: mean 0.45, and t(0.975, 1) = 12.706 times 0.25.
    assert "+0.450 (-2.727 to +3.627)" in text
