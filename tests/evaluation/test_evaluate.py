"""Samples of an evaluation and counts of training prompts, resumed after an interruption: one file, one
setting. Which benchmarks there are, and when a run is evaluated."""

import asyncio
import json
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hora_rl.actors.data.datasets import load_dataset
from hora_rl.common.config import Config, DataConfig, EvaluationConfig
from hora_rl.common.data.table_files import DataError
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.common.types import Completion, Prompt, SamplingRequest, Scored
from hora_rl.deploy.cli import app
from hora_rl.deploy.launch.counting import about_data, choose
from hora_rl.deploy.launch.live_evaluation import Next, is_late, next_evaluation
from hora_rl.evaluation import benchmarks
from hora_rl.evaluation.benchmarks import BENCHMARKS, find_benchmark, find_benchmarks, held_out, whole_numbers
from hora_rl.evaluation.evaluate import Counts, Progress, evaluate
from hora_rl.evaluation.plan import read_counts, write_counts
from tests.support.groups import completion
from tests.support.jsonl import lines

ABOUT = {"model": "dice", "temperature": 1.0}


def prompts(n: int) -> list[Prompt]:
    return [Prompt(i, f"roll {i}", str(i), np.array([i], np.int32)) for i in range(n)]


class Dice:
    """Sample j depends on seed + j alone, as vLLM's does; prompt i is right in i mod 7 of 6 throws."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self._fail_after = fail_after

    async def generate(self, request: SamplingRequest) -> list[Completion]:
        if self._fail_after is not None and len(self.asked) >= self._fail_after:
            raise ConnectionError("the generator is gone")
        self.asked.append((request.prompt.index, request.n))
        await asyncio.sleep(0.001)
        return [self._throw(request.prompt.index, request.seed + j) for j in range(request.n)]

    def _throw(self, prompt: int, seed: int) -> Completion:
        face = random.Random(seed).randrange(6)
        return completion(range(face + 1), "right" if face < prompt % 7 else "wrong", version=3)


async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
    right = [c.text == "right" for c in completions]
    return [Scored({"accuracy": float(r), "format": 1.0}, r) for r in right]


def run(out: Path, dice: Dice, samples: int = 40, n: int = 4, **kwargs: object) -> Counts:
    settings = {"about": ABOUT, "samples_per_request": 8, "in_flight": 3, **kwargs}
    return asyncio.run(evaluate(prompts(n), dice.generate, score, samples, out, **settings))  # type: ignore[arg-type]


def test_a_truncated_distribution_is_asked_for_and_is_part_of_the_samples_identity(tmp_path: Path) -> None:
    seen = []

    class Noting(Dice):
        async def generate(self, request: SamplingRequest) -> list[Completion]:
            seen.append(dict(request.truncation))
            return await super().generate(request)

    cut = EvaluationConfig(truncation={"top_p": 0.9, "top_k": 20, "min_p": 0.0}).truncation
    run(tmp_path / "s.jsonl", Noting(), truncation=cut)
    assert seen == [{"top_p": 0.9, "top_k": 20}] * len(seen) != []
    with pytest.raises(ConfigError, match=r"top_k = 20, .*None"):
        run(tmp_path / "s.jsonl", Dice(), truncation=EvaluationConfig().truncation)
    with pytest.raises(ValueError, match=r"rollout\.top_p.* evaluation\.truncation\.top_p"):
        load("tiny", ["rollout.top_p=0.9"])


def test_every_sample_is_written_once_and_counted(tmp_path: Path) -> None:
    counts = run(tmp_path / "s.jsonl", Dice(), samples=50)
    header, *samples = lines(tmp_path / "s.jsonl")
    assert header["about"]["model"] == "dice"
    every = [(p, j) for p in range(4) for j in range(50)]
    assert sorted((s["problem"], s["sample"]) for s in samples) == every
    for p in range(4):
        mine = [s for s in samples if s["problem"] == p]
        assert counts.correct[p] == sum(s["success"] for s in mine)
        assert counts.tokens[p] == sum(s["length"] for s in mine)
    assert counts.correct[0] == 0
    assert counts.correct[3] > 10
    assert samples[0]["versions"] == [3, 3]


@pytest.mark.parametrize("cut", [{"in_flight": 20}, {"samples_per_request": 7}, {"samples_per_request": 100}])
def test_what_is_sampled_does_not_depend_on_how_it_is_cut_into_requests(tmp_path: Path, cut: dict) -> None:
    def drawn(name: str) -> list[tuple[int, int, str, int]]:
        samples = lines(tmp_path / name)[1:]
        return sorted((s["problem"], s["sample"], s["text"], s["length"]) for s in samples)

    one = run(tmp_path / "one.jsonl", Dice(), in_flight=1)
    other = run(tmp_path / "other.jsonl", Dice(), **cut)
    assert one.correct.tolist() == other.correct.tolist()
    assert drawn("one.jsonl") == drawn("other.jsonl")


def test_an_interrupted_evaluation_goes_on_without_repeating_a_sample(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole.jsonl", Dice())
    out = tmp_path / "s.jsonl"
    with pytest.raises(ConnectionError, match="gone"):
        run(out, Dice(fail_after=7))
    before = lines(out)
    rest = Dice()
    counts = run(out, rest)
    assert lines(out)[: len(before)] == before
    assert len(rest.asked) == 20 - (len(before) - 1) // 8
    assert len(lines(out)) == 1 + 160
    assert counts.correct.tolist() == whole.correct.tolist()


@pytest.mark.parametrize("cut", [1, 40, 300, 1000, "all but 20"])
def test_a_torn_line_is_drawn_again_as_it_was(tmp_path: Path, cut: int | str) -> None:
    out = tmp_path / "s.jsonl"
    run(out, Dice(), in_flight=1)
    content = out.read_bytes()
    out.write_bytes(content[:-cut] if isinstance(cut, int) else content[:20])
    run(out, Dice(), in_flight=1)
    assert out.read_bytes() == content


def test_a_finished_evaluation_asks_for_nothing_and_a_larger_n_for_the_rest_alone(tmp_path: Path) -> None:
    out, again = tmp_path / "s.jsonl", Dice()
    first = run(out, Dice(), samples=20)
    assert run(out, again, samples=20).correct.tolist() == first.correct.tolist()
    assert run(out, again, samples=8).samples == 8
    assert again.asked == []
    grown = run(out, again, samples=40)
    assert sum(n for _, n in again.asked) == 4 * (8 + 8 + 8)
    assert len(lines(out)) == 1 + 160
    assert grown.correct.tolist() == run(tmp_path / "whole.jsonl", Dice()).correct.tolist()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"about": {"model": "coin", "temperature": 1.0}}, "model = 'dice', now it is 'coin'"),
        ({"seed": 1}, "seed = 0, now it is 1"),
        ({"n": 3}, "problems ="),
    ],
)
def test_samples_of_something_else_are_never_mixed_in(tmp_path: Path, changed: dict, named: str) -> None:
    run(tmp_path / "s.jsonl", Dice())
    with pytest.raises(ConfigError, match=named):
        run(tmp_path / "s.jsonl", Dice(), **changed)


def test_a_damaged_line_is_named_with_its_place(tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    run(out, Dice())
    text = out.read_text().splitlines(keepends=True)
    text[5] = "{}\n"
    out.write_text("".join(text))
    with pytest.raises(ConfigError, match=r"s\.jsonl:6: "):
        run(out, Dice())
    out.write_text("no JSON\n")
    with pytest.raises(ConfigError, match=r"s\.jsonl: line 1"):
        run(out, Dice())


def test_progress_rises_to_the_total_and_estimates_the_time_left(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run(tmp_path / "s.jsonl", Dice(), progress=seen.append)
    assert [p.done for p in seen] == list(range(8, 161, 8))
    assert seen[-1].total == 160
    assert seen[-1].left_s == 0.0
    assert all(p.left_s is not None and p.left_s > 0 for p in seen[:-1])


def test_every_shipped_benchmark_loads_whole_and_has_the_papers_sizes() -> None:
    ks = (1, 8, 16, 32, 64, 128, 256)
    sizes = {"math500": (500, 256), "amc23": (40, 256), "aime24": (30, 1024), "aime25": (30, 1024)}
    assert sizes.keys() == BENCHMARKS.keys()
    for name, (rows, samples) in sizes.items():
        benchmark = BENCHMARKS[name]
        data = load_dataset(benchmark.data(DataConfig(path="x")))
        assert (len(data), data.rejected, benchmark.samples) == (rows, (), samples)
        assert [r.index for r in data.rows] == list(range(rows))
        assert benchmark.ks == (ks if samples == 256 else (*ks, 512, 1024))
        assert not any(str(r.answer).endswith(".0") for r in data.rows)


@pytest.mark.parametrize("name", ["amc23.jsonl", "own/math500", "amc23", "path of amc23"])
def test_only_a_shipped_file_has_the_columns_of_a_shipped_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A user's file or data set may have its name."""
    monkeypatch.chdir(tmp_path)
    Path("amc23.jsonl").write_text('{"question": "1+1=?", "gold": 2}\n')
    path = os.path.relpath(BENCHMARKS["amc23"].path) if name == "path of amc23" else name
    data = find_benchmark(path).data(DataConfig(path="x", prompt_field="question", answer_field="gold"))
    own = ("problem", "answer") if name in ("amc23", "path of amc23") else ("question", "gold")
    assert (data.prompt_field, data.answer_field) == own


def test_k_above_n_is_refused_when_asked_for_and_left_out_of_a_benchmarks_own_list() -> None:
    benchmark = find_benchmark("aime24")
    assert benchmark.sized(64, None).ks == (1, 8, 16, 32, 64)
    assert benchmark.sized(None, whole_numbers("--k", "1, 4")).ks == (1, 4)
    for text in ("", "1;8", "1,,8"):
        with pytest.raises(ConfigError, match="--k"):
            whole_numbers("--k", text)
    with pytest.raises(DataError, match=r"aime24: Pass@128 .*64"):
        benchmark.sized(64, (1, 128))
    with pytest.raises(DataError, match="aime24: N"):
        benchmark.sized(0, None)


def test_a_benchmark_is_a_name_a_file_or_a_hub_name_and_that_of_a_run_has_its_sizes(tmp_path: Path) -> None:
    own = held_out(EvaluationConfig(path="arithmetic:2-4", samples=32, k=(1, 4)))
    assert (own.name, own.samples, own.ks) == ("arithmetic-2-4", 32, (1, 4))
    paths = [tmp_path / name / "test.jsonl" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text('{"problem": "1+1", "answer": 2}\n')
    names = ["arithmetic:2-3", str(paths[0]), "HuggingFaceH4/MATH-500", "arithmetic:2-3"]
    found = find_benchmarks(names)
    assert [b.name for b in found] == ["arithmetic-2-3", "test", "MATH-500"]
    data = found[0].data(DataConfig(path="arithmetic", limit=7))
    assert (data.split, data.limit) == ("held-out", None), "training never meets them"
    for name in ("math501", "absent/file.jsonl", "./absent"):
        with pytest.raises(DataError, match=name):
            find_benchmark(name)
    with pytest.raises(DataError, match=r"a/test.jsonl and .*b/test.jsonl"):
        find_benchmarks(["amc23", *map(str, paths)])


def test_a_write_that_fails_leaves_the_file_as_it_was_and_says_what_to_do(tmp_path: Path) -> None:
    out = tmp_path / "s.jsonl"
    run(out, Dice(), samples=8)
    before = out.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))  # a disk with 100 bytes left
    try:
        with pytest.raises(ConfigError, match=r"s\.jsonl: .*File too large"):
            run(out, Dice(), samples=16)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    assert out.read_bytes() == before
    run(out, Dice(), samples=16)
    assert len(lines(out)) == 1 + 64


def test_a_training_prompt_of_a_shipped_benchmark_or_the_held_out_problems_is_found(tmp_path: Path) -> None:
    held, train = tmp_path / "held.jsonl", tmp_path / "train.jsonl"
    held.write_text('{"problem": "2+2=?", "answer": 4}\n{"problem": "3+3=?", "answer": 6}\n')
    known = load_dataset(find_benchmark("aime24").data(DataConfig(path="x"))).rows[4].problem
    problems = ["1+1=?", "  " + known.upper() + " ", "3+3 = ?"]
    train.write_text("".join(json.dumps({"problem": p, "answer": "1"}) + "\n" for p in problems))
    sections = {"model": {"path": "m"}, "data": {"path": str(train)}, "evaluation": {"path": str(held)}}
    config = Config.model_validate(sections)
    leaks = benchmarks.known_leaks(config, load_dataset(config.data).rows)
    found = {(row, Path(known).name) for row, known in leaks}
    assert found == {(f"{train}:2", "aime24.jsonl:5"), (f"{train}:3", "held.jsonl:2")}


@pytest.mark.parametrize(
    ("version", "done", "begun", "step", "left_out"),
    [
        (0, (), (), 0, ()),
        (4, (0,), (), None, ()),
        *((version, (0,), (), 5, ()) for version in (5, 9)),
        (17, (0,), (), 15, (5, 10)),
        (17, (0,), (5,), 5, ()),
        (17, (0, 10), (5,), 15, ()),  # step 5 failed or was left out, and its weights are gone
        (14, (0, 10), (), None, ()),
        (20, (0, 5, 10, 15), (), None, ()),  # the last step's own follows training
        (25, (0, 5, 10), (), 15, ()),
        (3, (), (), None, (0,)),  # the initial policy is trained: nothing to compare with is left
        (3, (), (0,), 0, ()),
        (6, (), (), 5, (0,)),
    ],
)
def test_the_newest_due_evaluation_is_next_unless_one_has_begun(version, done, begun, step, left_out):
    assert next_evaluation(5, 20, version, done, begun) == Next(step, left_out)


def test_an_evaluation_is_late_when_the_next_one_is_due():
    assert [is_late(5, 10, version) for version in (10, 14, 15)] == [False, False, True]


def test_a_plan_reads_the_counts_of_samples(tmp_path: Path) -> None:
    counts, out = run(tmp_path / "s.jsonl", Dice(), samples=20, n=100), tmp_path / "counts.jsonl"
    write_counts(out, counts)
    read = read_counts(out)
    assert read.successes.tolist() == counts.correct.tolist()
    assert set(read.trials.tolist()) == {20}
    made = CliRunner().invoke(app, ["plan", str(out), "--group-size", "16", "--rounds", "1", "--json"])
    assert made.exit_code == 0, made.output
    assert len(json.loads(made.stdout)["rows"]) > 1


def test_training_prompts_are_chosen_at_random_as_a_prefix_and_too_few_are_refused() -> None:
    config = load("tiny", ["data.limit=400"])
    few, more = choose(config, 100), choose(config, 150)
    assert [p.index for p in few] == [p.index for p in more[:100]]
    assert sorted(p.index for p in few) != list(range(100))
    assert len({p.index for p in few}) == 100
    other = choose(load("tiny", ["data.limit=400", "run.seed=1"]), 100)
    assert {p.index for p in other} != {p.index for p in few}
    with pytest.raises(ConfigError, match=r"--prompts \(20\).* 100"):
        choose(config, 20)
    with pytest.raises(ConfigError, match=r"--prompts \(500\): arithmetic.* 400"):
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
    assert about_data(config.data, config.reward)["data"] == {
        "easy": ["arithmetic:1-2", 3.0, "accuracy", 1.0],
        "hard": ["arithmetic:4-5", 1.0, "accuracy", 0.5],
    }
    few = "arithmetic:1-2 .* 90 .*arithmetic:4-5 .* 60 "
    with pytest.raises(ConfigError, match=rf"--prompts \(130\): {few}"):
        choose(config, 130)
