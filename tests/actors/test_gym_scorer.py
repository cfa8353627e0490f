"""Answers to tasks of reasoning-gym, judged by the tasks' own scorers in the sandbox."""

from contextlib import closing

import pytest

from hora_rl.actors.data.datasets import load_dataset
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import DataConfig, RewardConfig
from hora_rl.common.data.rewards import Answer

pytestmark = pytest.mark.system

REWARD = RewardConfig(weights={"accuracy": 1.0}, answer="boxed", time_limit_s=2.0)
TASKS = ("chain_sum", "countdown", "arc_agi", "prime_factorization", "gsm_symbolic", "simple_integration")
"""Plain text, several right answers, tuples in the row, a scorer that raises, rows that JSON cannot hold,
sympy's late imports."""


def first_row(task):
    return load_dataset(DataConfig(path=f"reasoning_gym:{task}", limit=1), gold_test(REWARD)).rows[0]


async def scored(*answers):
    """What each (row, text) earns."""
    asked = [Answer(row.problem, rf"\boxed{{{text}}}", row.answer, row.columns) for row, text in answers]
    with closing(VerifierPool(REWARD)) as pool:
        return [rewards["accuracy"] for rewards in await pool.score_batch(asked)]


async def test_gold_answers_are_right_and_others_are_not():
    rows = [first_row(task) for task in TASKS]
    assert await scored(*((row, row.answer) for row in rows)) == [1.0] * len(rows)
    wrong = await scored(*((row, "it cannot be said") for row in rows))
    assert all(0.0 <= score < 0.1 for score in wrong)


async def test_another_right_answer_and_part_of_one_are_the_scorers_to_judge():
    row = first_row("countdown")
    assert await scored((row, f"0 + {row.answer}"), (row, row.answer.replace("*", " * "))) == [0.05, 1.0]


async def test_a_sum_of_parts_that_rounding_lifts_above_one_is_one():
    """Nine ninths: the learner refuses a group with a larger reward, and would refuse it whenever it is
    sampled again."""
    data = DataConfig(
        path="reasoning_gym:spell_backward", settings={"min_word_len": 9, "max_word_len": 9}, limit=1
    )
    [row] = load_dataset(data, gold_test(REWARD)).rows
    assert await scored((row, f"{row.answer}s")) == [1.0]


async def test_an_answer_that_is_python_reaches_nothing_and_ends_in_time(tmp_path):
    """The first scorer evaluates lists, the second whatever sympy takes for an expression."""
    mark = tmp_path / "mark"
    mark.write_text("here")
    hostile = [
        f"[__import__('os').remove('{mark}')]",
        f"[open('{mark}', 'w')]",
        "[__import__('subprocess').run('id')]",
        "[__import__('socket').socket()]",
        "[__import__('os').kill(1, 9)]",
        "[9**9**9]",
        "[' ' * 8 * 2**30]",
    ]
    rows = [first_row("string_insertion"), first_row("countdown")]
    assert max(await scored(*((row, text) for row in rows for text in hostile))) < 0.1
    assert mark.read_text() == "here"


def test_a_row_whose_answer_is_too_long_to_be_given_is_left_out(monkeypatch):
    monkeypatch.setattr("hora_rl.actors.data.gold_answers.MAX_ANSWER_CHARS", 100)
    found = load_dataset(
        DataConfig(path="reasoning_gym:palindrome_partitioning", limit=20), gold_test(REWARD)
    )
    assert found.rejected
    assert all(len(row.answer) <= 100 for row in found.rows)
