"""Tasks of reasoning-gym: their rows, and answers judged by the tasks' own scorers in the sandbox."""

from contextlib import closing

import pytest
from pydantic import ValidationError

from hora_rl.actors.data.datasets import load_dataset, load_held_out
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import Config, DataConfig, EvaluationConfig, RewardConfig
from hora_rl.common.data import gym
from hora_rl.common.data.arithmetic import normalised
from hora_rl.common.data.rewards import Answer
from hora_rl.common.data.table_files import DataError
from hora_rl.common.errors import ConfigError

pytestmark = pytest.mark.system

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
"""Of `chain_sum`: 200 different questions."""


def entries(task, split="train", limit=None, **settings):
    """Made anew: nothing of another test's call."""
    gym._entries.cache_clear()
    return gym.entries(gym.PREFIX + task, settings, split, limit)


def test_rows_are_a_function_of_task_settings_and_seed(monkeypatch):
    """This generator goes by the order of sets."""
    task = "word_ladder"
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    first = entries(task, limit=12, seed=3)
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    assert entries(task, limit=12, seed=3) == first
    assert entries(task, limit=5, seed=3) == first[:5], "a larger data set begins with a smaller one"
    assert {e["question"] for e in entries(task, limit=12, seed=4)}.isdisjoint(e["question"] for e in first)


@pytest.mark.parametrize(("task", "settings"), [("chain_sum", SUMS), ("coin_flip", {})])
def test_no_seed_and_no_number_of_rows_brings_a_held_out_question_into_training(task, settings):
    held = entries(task, "held-out", 30, **settings)
    train = [e for seed in (0, 7) for e in entries(task, limit=150, seed=seed, **settings)]
    assert len(train) == 300
    of_train, of_held = ({normalised(e["question"]) for e in side} for side in (train, held))
    assert of_held.isdisjoint(of_train)


def test_a_task_with_few_questions_gives_each_once_and_says_where_they_do_not_suffice():
    train, held = entries("chain_sum", **SUMS), entries("chain_sum", "held-out", **SUMS)
    assert 190 < len({e["question"] for e in (*train, *held)}) == len(train) + len(held) <= 200
    with pytest.raises(ConfigError, match=rf"{len(train)} different .* on the train side.*data.limit"):
        entries("chain_sum", limit=400, **SUMS)
    with pytest.raises(ConfigError, match=r"0 different questions on the \S+ side"):
        [entries("count_bits", split, max_n=1) for split in ("train", "held-out")]


@pytest.mark.parametrize(
    ("task", "settings", "named"),
    [
        ("chainsum", {}, "chain_sum"),
        ("chain_sum", {"min_term": 2}, "min_terms"),
        ("chain_sum", {"min_terms": 5, "max_terms": 2}, "max_terms"),
        ("chain_sum", {"size": 10}, r"data\.limit"),
    ],
)
def test_what_the_library_refuses_is_one_line_with_the_task(task, settings, named):
    with pytest.raises(ConfigError, match=named) as refused:
        entries(task, limit=3, **settings)
    assert gym.PREFIX + task in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_process_that_ends_early_is_one_line_with_its_last_words(tmp_path, monkeypatch):
    script = tmp_path / "process.py"
    script.write_text("raise MemoryError('no room')")
    monkeypatch.setattr(gym.gym_process, "__file__", str(script))
    with pytest.raises(ConfigError, match=r"ended before it had made 7 rows \(MemoryError: no room\)"):
        entries("chain_sum", limit=7)


def test_without_the_library_the_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(gym, "packages", lambda: None)
    with pytest.raises(ConfigError, match=f"pip install {gym.PINNED}"):
        entries("chain_sum", limit=2)


def test_a_data_set_has_the_tasks_questions_and_the_other_side_held_out():
    data = DataConfig(path="reasoning_gym:chain_sum", settings=SUMS, limit=20)
    config = Config(model={"path": "m"}, data=data, evaluation=EvaluationConfig(path=data.path, prompts=15))
    train, held = load_dataset(config.data), load_held_out(config.evaluation, config.evaluated.data)
    assert (len(train), len(held)) == (20, 15)
    for row in (train.rows[0], held.rows[0]):
        assert row.columns[gym.TASK] == {"task": "chain_sum", "settings": SUMS}
    assert all(str(eval(r.columns["metadata"]["expression"])) == r.answer for r in (*train.rows, *held.rows))
    with pytest.raises(DataError, match=r"data\.split \('test'\)"):
        load_dataset(data.model_copy(update={"split": "test"}))
    with pytest.raises(ValidationError, match="settings are of a reasoning_gym task"):
        DataConfig(path="arithmetic", settings={"seed": 1})
    other = "reasoning_gym:gcd"
    changed = data.held_out(other)
    assert (changed["path"], changed["split"], changed["settings"]) == (other, "held-out", {})


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
