"""RUN/rollouts holds every rollout of every trained group, once, whatever is killed."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.load import load
from hora_rl.common.rollout_files import FOLDER, files_of, path_of
from hora_rl.common.types import Group, Origin
from hora_rl.evaluation.rollout_table import read_rollouts
from hora_rl.learner.rollout_writer import RolloutFiles
from tests.support.groups import group, rollout

ORIGIN = Origin("a1b2", 10.0, 10.5, 12.0, 12.25)


def configuration(folder: Path, *more: str) -> Config:
    return load("tiny", ["run.name=r", f"run.folder={folder}", *more])


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(load("tiny").model.path)


def groups_of(config: Config, tokenizer, step: int, n: int = 3) -> list[Group]:
    """`n` groups of three rollouts that say `step`+place; the prompts are those of the step."""
    prompt = render(tokenizer, "12+34=?", config.data)
    end = [tokenizer.eos_token_id]
    made = []
    for place in range(n):
        said = tokenizer.encode(f"<answer>{step}{place}</answer>", add_special_tokens=False)
        drawn = [
            rollout(said + end, logprobs=-0.25, version=step, phase="A", success=True),
            rollout(said[:2], logprobs=-2.0, version=step, phase="B", success=False, finish_reason="length"),
            rollout(said + end, logprobs=-1.0, version=step, phase="B", success=True),
        ]
        noted = [replace(r, origin=ORIGIN) for r in drawn]
        made.append(group(step * n + (n - place), noted, batch=step, prompt=prompt))
    return made


def written(config: Config, tokenizer, folder: Path, *steps: list[Group]) -> None:
    files = RolloutFiles(config, tokenizer, folder)
    for step, groups in enumerate(steps):
        files.write(step, groups)
    files.close()


def test_a_row_says_what_was_sampled_by_whom_when_and_what_it_earned(tmp_path: Path, tokenizer) -> None:
    config = configuration(tmp_path, "telemetry.rollouts_logprobs=true")
    files = RolloutFiles(config, tokenizer, tmp_path)
    files.write(7, groups_of(config, tokenizer, 7))
    files.close()
    table = read_rollouts(tmp_path)
    assert table["prompt"].to_pylist() == sorted(table["prompt"].to_pylist())  # one prompt's rows follow
    row = next(r for r in table.to_pylist() if r["group"] == "0:24" and r["number"] == 1)
    assert row["prompt_text"] == tokenizer.decode(render(tokenizer, "12+34=?", config.data).tolist())
    assert row["completion"] == "<answer>7"  # cut, so it has no end to leave out
    whole = next(r for r in table.to_pylist() if r["group"] == "0:24" and r["number"] == 2)
    assert whole["completion"] == "<answer>70</answer>"
    assert (row["step"], row["batch"], row["epoch"], row["prompt"], row["phase"]) == (7, 7, 0, 24, "B")
    assert (row["success"], row["reward/accuracy"], row["reward/format"]) == (False, 0.0, 1.0)
    assert row["reward"] == pytest.approx(
        sum(w * row[f"reward/{n}"] for n, w in config.reward.weights.items())
    )
    assert (row["length"], row["finish"], row["logprob"]) == (2, "length", -2.0)
    assert row["versions"] == [{"version": 7, "start": 0, "end": 2}]
    moments = [row[name] for name in ("queued", "first_token", "done", "scored")]
    assert (row["replica"], moments) == ("a1b2", [10.0, 10.5, 12.0, 12.25])
    assert row["logprobs"] == [-2.0, -2.0]
    assert len(row["tokens"]) == 2
    assert row["source"] is None


def test_without_a_wish_for_them_tokens_and_log_probs_are_not_kept(tmp_path: Path, tokenizer) -> None:
    config = configuration(tmp_path)
    written(config, tokenizer, tmp_path, groups_of(config, tokenizer, 0))
    assert not {"tokens", "logprobs"} & set(read_rollouts(tmp_path).column_names)


def test_a_learner_killed_while_it_writes_neither_loses_nor_doubles_a_row(tmp_path: Path, tokenizer) -> None:
    config = configuration(tmp_path)
    written(config, tokenizer, tmp_path, *(groups_of(config, tokenizer, step) for step in range(4)))
    half = path_of(tmp_path, 4).with_name("step-00000004.parquet.new")
    half.write_bytes(b"PAR1 and no end")
    path_of(tmp_path, 3).write_bytes(path_of(tmp_path, 3).read_bytes()[:-7])  # the disk lost its end
    again = RolloutFiles(config, tokenizer, tmp_path, start=2)
    assert list(files_of(tmp_path)) == [0, 1]
    for step in range(2, 5):
        again.write(step, groups_of(config, tokenizer, step))
    again.close()
    found = Counter(
        zip(*(read_rollouts(tmp_path)[n].to_pylist() for n in ("step", "group", "number")), strict=True)
    )
    expected = {
        (step, g.id, i)
        for step in range(5)
        for g in groups_of(config, tokenizer, step)
        for i in range(g.size)
    }
    assert found == Counter(expected)
    assert not list((tmp_path / FOLDER).glob("*.new"))


def test_a_sample_is_of_prompts_and_none_writes_nothing(tmp_path: Path, tokenizer) -> None:
    sampled = configuration(tmp_path, "telemetry.rollouts=sample", "telemetry.rollouts_share=0.3")
    everything = [replace(g, epoch=step) for step in (0, 1) for g in groups_of(sampled, tokenizer, 0, 60)]
    written(sampled, tokenizer, tmp_path / "s", everything)
    table = read_rollouts(tmp_path / "s")
    kept = {epoch: set() for epoch in (0, 1)}
    for epoch, prompt in zip(table["epoch"].to_pylist(), table["prompt"].to_pylist(), strict=True):
        kept[epoch].add(prompt)
    assert kept[0] == kept[1]
    assert 6 <= len(kept[0]) <= 32
    written(configuration(tmp_path, "telemetry.rollouts=none"), tokenizer, tmp_path / "n", everything)
    assert not (tmp_path / "n" / FOLDER).exists()


def test_the_oldest_steps_go_when_the_folder_is_full(tmp_path: Path, tokenizer) -> None:
    config = configuration(tmp_path)
    written(config, tokenizer, tmp_path, groups_of(config, tokenizer, 0))
    size = path_of(tmp_path, 0).stat().st_size
    small = configuration(tmp_path, f"telemetry.rollouts_gib={2.5 * size / 2**30}")
    files = RolloutFiles(small, tokenizer, tmp_path, start=1)  # what an earlier start wrote counts
    for step in range(1, 6):
        files.write(step, groups_of(config, tokenizer, step))
    files.close()
    assert list(files_of(tmp_path)) == [4, 5]


def test_a_file_that_cannot_be_written_ends_the_run_at_the_next_step(tmp_path: Path, tokenizer) -> None:
    config = configuration(tmp_path)
    files = RolloutFiles(config, tokenizer, tmp_path)
    (tmp_path / FOLDER).rmdir()
    files.write(0, groups_of(config, tokenizer, 0))
    with pytest.raises(FileNotFoundError):
        files.write(1, groups_of(config, tokenizer, 1))


def test_a_reward_that_gives_further_numbers_has_a_column_for_each(tmp_path: Path, tokenizer) -> None:
    config = configuration(tmp_path)
    (whole,) = groups_of(config, tokenizer, 1, 1)
    more = [replace(r, rewards={**r.rewards, "mine/depth": 2.5}) for r in whole.rollouts]
    first = groups_of(config, tokenizer, 0, 1)
    written(config, tokenizer, tmp_path, first, [replace(whole, rollouts=tuple(more))])
    table = read_rollouts(tmp_path, columns=["step", "reward/mine/depth"], order="oldest")
    assert table["reward/mine/depth"].to_pylist() == [None] * 3 + [2.5] * 3
    chosen = read_rollouts(tmp_path, columns=["step", "reward/mine/depth"], order="oldest", limit=2)
    assert chosen.column_names == ["step"], "no file that was read has it"
    assert read_rollouts(tmp_path, order="longest", limit=6)["reward/mine/depth"].null_count == 3
