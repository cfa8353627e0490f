"""Rollouts of a run are chosen, sorted and paged; what cannot be read is one line."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hora_rl.common.load import load
from hora_rl.common.rollout_files import path_of
from hora_rl.evaluation.audit import RunRecords
from hora_rl.evaluation.audit_rollouts import rollout_rows
from hora_rl.evaluation.rollout_table import read_rollouts, steps_of
from hora_rl.evaluation.run_folders import RunFolderError
from hora_rl.learner.records import group_record
from tests.support.rollouts import write_rollouts


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 0 to 3 of four prompts, each with a hit of three tokens and a miss as long as its step."""
    folder = tmp_path_factory.mktemp("run")
    write_rollouts(folder, steps=4, prompts=4)
    return folder


def names(table) -> list[tuple[int, int, int]]:
    return list(zip(*(table[n].to_pylist() for n in ("step", "prompt", "number")), strict=True))


def test_filters_leave_what_fits_and_the_newest_comes_first(run: Path) -> None:
    assert read_rollouts(run).num_rows == 32
    assert names(read_rollouts(run, limit=3)) == [(3, 0, 0), (3, 0, 1), (3, 1, 0)]
    assert names(read_rollouts(run, limit=2, offset=3)) == [(3, 1, 1), (3, 2, 0)]
    assert names(read_rollouts(run, step=1, success=False)) == [(1, p, 1) for p in range(4)]
    assert names(read_rollouts(run, prompt=2, phase="A", order="oldest")) == [(s, 2, 0) for s in range(4)]
    assert read_rollouts(run, prompt=99).num_rows == 0
    assert read_rollouts(run, prompt=99, limit=5).num_rows == 0
    assert steps_of(run) == [0, 1, 2, 3]


def test_the_longest_and_the_least_likely_of_all_steps(run: Path) -> None:
    longest = read_rollouts(run, order="longest", limit=3)
    assert longest["length"].to_pylist() == [8, 8, 8]
    assert set(longest["step"].to_pylist()) == {3}
    chosen = read_rollouts(run, columns=["completion", "prompt"], order="longest", limit=1)
    assert chosen.column_names == ["completion", "prompt"]
    unlikely = read_rollouts(run, order="least_likely", limit=5)
    values = unlikely["logprob"].to_pylist()
    assert values == sorted(values)
    assert values[0] == min(read_rollouts(run)["logprob"].to_pylist())


def test_a_run_that_began_to_keep_log_probs_is_one_table(tmp_path: Path) -> None:
    write_rollouts(tmp_path, steps=1)
    write_rollouts(tmp_path, "telemetry.rollouts_logprobs=true", steps=2, start=1)
    table = read_rollouts(tmp_path, order="oldest")
    assert table["logprobs"].to_pylist()[0] is None
    assert table["logprobs"].to_pylist()[-1] is not None


def test_a_damaged_file_is_named_in_one_line(tmp_path: Path) -> None:
    write_rollouts(tmp_path, steps=2)
    path = path_of(tmp_path, 1)
    whole = path.read_bytes()
    middle = len(whole) // 2
    noise = whole[:middle] + bytes(b ^ 0xFF for b in whole[middle : middle + 64]) + whole[middle + 64 :]
    for damaged in (whole[:-9], noise, b""):
        path.write_bytes(damaged)
        with pytest.raises(RunFolderError, match=r"step-00000001\.parquet: not a file of rollouts") as error:
            read_rollouts(tmp_path)
        assert "\n" not in str(error.value)
    assert read_rollouts(tmp_path, step=0).num_rows == 8


def test_no_rollouts_and_a_step_that_is_not_there_are_one_line_each(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no rollouts here") as error:
        read_rollouts(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(RunFolderError, match="no rollouts of step 9: there are those of 4 steps from 0 to 3"):
        read_rollouts(run, step=9)


def written(run: Path, *settings: str) -> RunRecords:
    """Three steps with their rollouts."""
    steps = write_rollouts(run, *settings, steps=3).items()
    records = [group_record(step, g, load("tiny")) for step, groups in steps for g in groups]
    return RunRecords([], {}, records, frozenset(), durable=3)


def test_the_audit_names_what_is_missing_doubled_or_foreign(tmp_path: Path) -> None:
    facts = written(tmp_path)
    records = facts.records
    assert rollout_rows(facts, tmp_path) == []
    larger: list = [{**records[0], "size": 5}, *records[1:]]
    (line,) = rollout_rows(replace(facts, records=larger), tmp_path)
    assert "group 0:0 of step 0 has 2 rollouts" in line
    assert "trained with 5" in line
    (line,) = rollout_rows(replace(facts, records=records[1:]), tmp_path)
    assert "trained with 0" in line
    whole = pq.read_table(path_of(tmp_path, 0))
    pq.write_table(whole.slice(1), path_of(tmp_path, 0))
    (line,) = rollout_rows(facts, tmp_path)
    assert "group 0:0 of step 0 has 1 rollouts" in line
    pq.write_table(pa.concat_tables([whole, whole.slice(7)]), path_of(tmp_path, 0))
    assert "rollout 1 of group 0:3 of step 0 is written more than once" in rollout_rows(facts, tmp_path)
    pq.write_table(whole, path_of(tmp_path, 0))
    path_of(tmp_path, 1).unlink()
    (line,) = rollout_rows(facts, tmp_path)
    assert "step 1 is in a checkpoint and has no rollouts" in line
    path_of(tmp_path, 0).unlink()
    assert rollout_rows(facts, tmp_path) == [], "telemetry.rollouts_gib removes the oldest"
