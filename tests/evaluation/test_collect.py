"""`hora sample`: counts of training prompts, resumed after an interruption; one file, one setting."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hora_rl.common.load import load
from hora_rl.deploy.cli import app
from hora_rl.deploy.launch.counting import about_data, choose
from hora_rl.evaluation.plan.collect import collect
from hora_rl.evaluation.plan.counts import CountsError, read_counts
from hora_rl.evaluation.sample_loop import Progress
from tests.support.dice import ABOUT, Dice, prompts, score

SAMPLES = 20


def run(out: Path, dice: Dice, n: int = 100, **changed: Any) -> None:
    settings = {"samples": SAMPLES, "about": ABOUT, "samples_per_request": 8, "in_flight": 12, **changed}
    asyncio.run(collect(prompts(n), dice.generate, score, out=out, **settings))


def lines(path: Path) -> dict[int, dict[str, Any]]:
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({record["id"] for record in read}) == len(read)
    return {record["id"]: record for record in read}


def test_the_counts_are_those_of_the_samples_and_a_plan_reads_them(tmp_path: Path) -> None:
    out, dice, seen = tmp_path / "new" / "counts.jsonl", Dice(), list[Progress]()
    run(out, dice, progress=seen.append)
    found = lines(out)
    assert sorted(found) == list(range(100))
    assert sorted(n for index, n in dice.asked if index == 3) == [4, 8, 8]
    assert {(r["trials"], r["successes"]) for i, r in found.items() if i % 7 == 6} == {(SAMPLES, SAMPLES)}
    assert {r["successes"] for i, r in found.items() if i % 7 == 0} == {0}
    halves = [r["successes"] for i, r in found.items() if i % 7 == 3]
    assert abs(np.mean(halves) - SAMPLES / 2) < 3
    assert 6 < dice.most_waiting <= 12
    assert (seen[-1].done, seen[-1].total) == (100 * SAMPLES, 100 * SAMPLES)
    assert seen[-1].tokens == sum(r["tokens"] for r in found.values())
    counts = read_counts(out)
    assert counts.successes.tolist() == [r["successes"] for r in found.values()]
    assert counts.tokens is not None
    assert set(counts.trials.tolist()) == {SAMPLES}
    made = CliRunner().invoke(app, ["plan", str(out), "--group-size", "16", "--rounds", "1", "--json"])
    assert made.exit_code == 0, made.output
    assert all(0 < row["tokens"] < 16 * 6 for row in json.loads(made.stdout)["rows"])


def test_an_interrupted_call_goes_on_with_what_is_missing_and_draws_the_same(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "counts.jsonl"
    run(whole, Dice())
    with pytest.raises(ConnectionError):
        run(out, Dice(fail_after=60))
    kept = lines(out)
    assert 10 <= len(kept) <= 20
    with out.open("a") as file:
        file.write('{"id":99,"succ')  # torn by a crash
    dice = Dice()
    run(out, dice)
    assert not kept.keys() & {index for index, _ in dice.asked}
    assert lines(out) == lines(whole)
    again = Dice()
    run(out, again)
    assert again.asked == []
    run(out, again, n=110)
    assert {index for index, _ in again.asked} == set(range(100, 110))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"samples": 64}, "samples = 20, now it is 64"),
        ({"seed": 1}, "seed = 0, now it is 1"),
        ({"about": {**ABOUT, "model": "coin"}}, "model = 'dice', now it is 'coin'"),
    ],
)
def test_counts_of_two_things_never_meet(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    run(tmp_path / "counts.jsonl", Dice(), n=3)
    dice = Dice()
    with pytest.raises(CountsError, match=f"counts.jsonl:1: was counted with {says}: choose another --out"):
        run(tmp_path / "counts.jsonl", dice, **changed)
    assert dice.asked == []
    other = [replace(p, text="other") for p in prompts(3)]
    with pytest.raises(CountsError, match="was counted with prompt = "):
        asyncio.run(collect(other, dice.generate, score, SAMPLES, tmp_path / "counts.jsonl", about=ABOUT))
    (tmp_path / "counts.jsonl").write_text('{"id": 1, "successes": 2, "trials": 3}\n')
    with pytest.raises(CountsError, match=r"counts.jsonl:1: not a line of `hora sample`; choose another"):
        run(tmp_path / "counts.jsonl", dice)


def test_training_prompts_are_chosen_at_random_as_a_prefix_and_too_few_are_refused() -> None:
    config = load("tiny", ["data.limit=400"])
    few, more = choose(config, 100), choose(config, 150)
    assert [p.index for p in few] == [p.index for p in more[:100]]
    assert sorted(p.index for p in few) != list(range(100))
    assert len({p.index for p in few}) == 100
    other = choose(load("tiny", ["data.limit=400", "run.seed=1"]), 100)
    assert {p.index for p in other} != {p.index for p in few}
    with pytest.raises(CountsError, match=r"--prompts \(20\): a plan needs 100"):
        choose(config, 20)
    with pytest.raises(CountsError, match=r"--prompts \(500\): arithmetic has 400 usable"):
        choose(config, 500)


MIXED = (
    "data={sources: {easy: {path: 'arithmetic:1-2', weight: 3, limit: 90}, hard: {path: 'arithmetic:4-5', "
    "limit: 60, reward: {weights: {accuracy: 1.0}, success_at: 0.5}}}}",
)


def test_prompts_of_several_sources_are_chosen_in_proportion_and_counted_apart() -> None:
    config = load("tiny", MIXED)
    few, more = choose(config, 100), choose(config, 120)
    assert [p.index for p in few] == [p.index for p in more[:100]]
    assert Counter(p.source for p in few) == {"easy": 75, "hard": 25}
    assert about_data(config)["data"] == {
        "easy": ["arithmetic:1-2", 3.0, "accuracy", 1.0],
        "hard": ["arithmetic:4-5", 1.0, "accuracy", 0.5],
    }
    with pytest.raises(CountsError) as refused:
        choose(config, 130)
    assert str(refused.value) == (
        "--prompts (130): arithmetic:1-2 has 90 usable, arithmetic:4-5 has 60 usable; ask for fewer"
    )
