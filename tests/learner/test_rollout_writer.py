"""RUN/rollouts holds every rollout of every trained group, once, whatever is killed; W&B without a
network."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hora_rl.common.load import load
from hora_rl.common.rollout_files import FOLDER, files_of, path_of
from hora_rl.common.types import Rollout
from hora_rl.evaluation.rollout_table import read_rollouts
from hora_rl.learner.records.rollout_writer import RolloutFiles
from hora_rl.learner.records.step_records import log_evaluation, trackers
from tests.support.rollouts import hit_and_miss, tokenizer, write_rollouts


def test_a_row_says_what_was_sampled_by_whom_when_and_what_it_earned(tmp_path: Path) -> None:
    written = write_rollouts(tmp_path, "telemetry.rollouts=logprobs", steps=8, prompts=3, start=7)
    drawn = written[7][2]
    table = read_rollouts(tmp_path)
    assert table["prompt"].to_pylist() == [0, 0, 1, 1, 2, 2]  # one prompt's rows follow
    hit, miss = table.to_pylist()[-2:]
    assert hit["prompt_text"] == tokenizer().decode(drawn.prompt_tokens)
    assert hit["completion"] == tokenizer().decode(drawn.rollouts[0].tokens[:-1])
    assert miss["completion"] == tokenizer().decode(drawn.rollouts[1].tokens), "cut, so it has no end"
    assert (miss["step"], miss["batch"], miss["epoch"], miss["prompt"]) == (7, 7, 7, 2)
    assert (miss["group"], miss["number"], miss["phase"], miss["source"]) == ("7:2", 1, "B", None)
    assert (miss["success"], miss["reward/accuracy"], miss["reward/format"]) == (False, 0.0, 1.0)
    weights = load("tiny").reward.weights
    assert miss["reward"] == pytest.approx(sum(w * miss[f"reward/{n}"] for n, w in weights.items()))
    assert (miss["length"], miss["finish"], miss["logprob"]) == (12, "length", -3.0)
    assert miss["versions"] == [{"version": 7, "start": 0, "end": 12}]
    moments = [miss[name] for name in ("queued", "first_token", "done", "scored")]
    assert (miss["replica"], moments) == ("a1b2c3", [107.0, 107.5, 108.0, 108.25])
    assert miss["logprobs"] == [-3.0] * 12
    assert miss["tokens"] == drawn.rollouts[1].tokens.tolist()


def test_what_nobody_asks_for_is_not_kept(tmp_path: Path) -> None:
    write_rollouts(tmp_path, steps=1)
    assert not {"tokens", "logprobs"} & set(read_rollouts(tmp_path).column_names)
    write_rollouts(tmp_path / "n", "telemetry.rollouts=none", steps=1)
    assert not (tmp_path / "n" / FOLDER).exists()


def test_a_learner_killed_while_it_writes_neither_loses_nor_doubles_a_row(tmp_path: Path) -> None:
    written = write_rollouts(tmp_path, steps=4)
    half = path_of(tmp_path, 4).with_name("step-00000004.parquet.new")
    half.write_bytes(b"PAR1 and no end")
    path_of(tmp_path, 3).write_bytes(path_of(tmp_path, 3).read_bytes()[:-7])  # the disk lost its end
    written |= write_rollouts(tmp_path, steps=5, start=2)
    columns = (read_rollouts(tmp_path)[n].to_pylist() for n in ("step", "group", "number"))
    rows = ((step, g.id, i) for step, groups in written.items() for g in groups for i in range(g.size))
    assert Counter(zip(*columns, strict=True)) == Counter(rows)
    assert not list((tmp_path / FOLDER).glob("*.new"))


def test_the_oldest_steps_go_when_the_folder_is_full(tmp_path: Path) -> None:
    write_rollouts(tmp_path, steps=1)
    limit = 2.5 * path_of(tmp_path, 0).stat().st_size / 2**30
    # What an earlier start wrote counts.
    write_rollouts(tmp_path, f"telemetry.rollouts_gib={limit}", steps=6, start=1)
    assert list(files_of(tmp_path)) == [4, 5]


def test_a_file_that_cannot_be_written_ends_the_run_at_the_next_step(tmp_path: Path) -> None:
    [groups] = write_rollouts(tmp_path / "other", steps=1).values()
    files = RolloutFiles(load("tiny"), tokenizer(), tmp_path)
    (tmp_path / FOLDER).rmdir()
    files.write(0, groups)
    with pytest.raises(FileNotFoundError):
        files.write(1, groups)


def test_a_reward_that_gives_further_numbers_has_a_column_for_each(tmp_path: Path) -> None:
    def deeper(step: int, prompt: int) -> Sequence[Rollout]:
        more = {"mine/depth": 2.5} if step else {}
        return [replace(r, rewards={**r.rewards, **more}) for r in hit_and_miss(step, prompt)]

    write_rollouts(tmp_path, steps=2, prompts=1, draw=deeper)
    columns = ["step", "reward/mine/depth"]
    table = read_rollouts(tmp_path, columns=columns, order="oldest")
    assert table["reward/mine/depth"].to_pylist() == [None] * 2 + [2.5] * 2
    chosen = read_rollouts(tmp_path, columns=columns, order="oldest", limit=2)
    assert chosen.column_names == ["step"], "no file that was read has it"
    assert read_rollouts(tmp_path, order="longest", limit=4)["reward/mine/depth"].null_count == 2


STEPS = [{"reward": 0.25, "reward/rewards:score": 0.5}, {"reward": 0.75, "reward/rewards:score": math.nan}]


@pytest.mark.system
def test_wandb_offline_keeps_a_run_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    secret = "queue.url=redis://:secret-word@127.0.0.1:1"
    chosen = load("tiny", ["run.name=tracked", secret, "learner.wandb=sums"])
    for tracker in trackers(chosen, tmp_path):
        for step, values in enumerate(STEPS):
            tracker.log(values, step)
        tracker.close()
    log_evaluation(chosen, tmp_path, 2, {"pass@8": 0.5})
    wandb.teardown()
    names = "tracked", "tracked-evaluation"
    [steps], [judged] = (list(tmp_path.glob(f"wandb/offline-run-*/run-{name}.wandb")) for name in names)
    for word in (b"reward/rewards:score", b"0.25", b"0.75", b"NaN"):
        assert word in steps.read_bytes(), word
    assert b"pass@8" in judged.read_bytes()
    assert b"secret-word" not in steps.read_bytes()
