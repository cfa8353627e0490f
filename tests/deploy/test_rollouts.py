"""`hora rollouts` shows what was sampled, as it is chosen, sorted and bounded. It moves no terminal, and what
cannot be read is one line."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from hora_rl.common.console import visible
from hora_rl.common.load import load
from hora_rl.common.rollout_files import path_of
from hora_rl.deploy.cli import app
from hora_rl.deploy.runs.rollout_list import json_line, show_rollouts
from hora_rl.evaluation.audit import rollout_rows
from hora_rl.evaluation.audit_records import RunRecords
from hora_rl.evaluation.rollout_table import read_rollouts
from hora_rl.evaluation.run_folders import RunFolderError
from hora_rl.learner.records import rollout_writer
from hora_rl.learner.records.step_records import group_record
from tests.support.rollouts import SOURCES, write_rollouts

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\x1b]8;;http://evil\x07click\x1b]8;;\x07\r\x08\x7f\x9b31m"
    "\u202egnp.exe\u2066\u200b\ufeff\u2028\U000e0041<script>alert(1)</script>[bold red]markup[/]"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 0 to 3 of four prompts, each with a hit of three tokens and a miss as long as its step."""
    folder = tmp_path_factory.mktemp("run")
    write_rollouts(folder, "telemetry.rollouts=logprobs", steps=4, prompts=4)
    return folder


def shown(run: Path, width: int = 100, coloured: bool = False, **wanted: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=coloured)
    show_rollouts(run, console=console, **wanted)
    return out.getvalue()


def test_prompt_completion_rewards_and_times_are_shown(run: Path) -> None:
    text = shown(run, step=2, prompt=1)
    drawn = ("step 2 · prompt 1 · epoch 2", "format 1, accuracy 1", "log-prob -0.1", "#1 B miss", "7 tokens")
    for part in (*drawn, "first token after 500 ms", "by a1b2c3", "<answer>1"):
        assert part in text, part
    assert text.count("12+34=?") == 1, "a prompt is shown once for its rollouts"


def test_what_does_not_exist_is_one_line(run: Path) -> None:
    assert shown(run, prompt=77) == "0 rollouts\n"
    with pytest.raises(RunFolderError, match="step 9") as error:
        read_rollouts(run, step=9)
    assert "\n" not in str(error.value)


def test_the_command_s_options_choose_as_they_say(run: Path) -> None:
    def rows(*options: str) -> list[dict]:
        done = CliRunner().invoke(app, ["rollouts", str(run), "--json", *options])
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert len(rows("--limit", "50")) == 32
    assert {r["success"] for r in rows("--success")} == {True}
    assert {r["success"] for r in rows("--failure")} == {False}
    assert {r["step"] for r in rows("--step", "1")} == {1}
    assert [r["length"] for r in rows("--order", "longest", "--limit", "2")] == [8, 8]
    assert rows("--order", "least_likely", "--limit", "1")[0]["logprob"] == -4.0


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer that spells the hostile text stands for a model that learned to."""
    for reads in ("completed", "spoken"):
        monkeypatch.setattr(rollout_writer, reads, lambda *_: HOSTILE)
    write_rollouts(tmp_path, steps=1, prompts=1)
    return tmp_path


def test_hostile_output_stays_text_in_the_terminal_and_ascii_in_json(hostile: Path) -> None:
    assert read_rollouts(hostile)["completion"].to_pylist()[0] == HOSTILE  # kept as it was sampled
    text = shown(hostile, 400)
    forbidden = [c for c in HOSTILE if not c.isprintable()]
    assert not [c for c in text if c in forbidden]
    for written in ("\\x1b[2J", "\\x1b]0;owned\\x07", "\\u202egnp.exe", "\\u2028", "\\U000e0041", "\\x9b31m"):
        assert written in "".join(text.split()), written  # wherever a line was wrapped
    assert "[boldred]markup[/]" in "".join(text.split())
    coloured = shown(hostile, 400, coloured=True)
    assert [sign for sign in ("\x1b[2J", "\x1b]", "\u202e") if sign in coloured] == []
    (row, _) = read_rollouts(hostile).to_pylist()
    line = json_line(row)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["completion"] == HOSTILE


def test_ordinary_text_of_any_script_is_left_alone() -> None:
    for text in ("a\tb\nc", "naïve ∑ α≤β", "答案是 42", "نعم", "é", "👍🏽"):
        assert visible(text) == text


def names(table) -> list[tuple[int, int, int]]:
    return list(zip(*(table[n].to_pylist() for n in ("step", "prompt", "number")), strict=True))


def test_filters_leave_what_fits_and_the_newest_comes_first(run: Path, tmp_path: Path) -> None:
    assert read_rollouts(run).num_rows == 32
    assert names(read_rollouts(run, limit=3)) == [(3, 0, 0), (3, 0, 1), (3, 1, 0)]
    assert names(read_rollouts(run, step=1, success=False)) == [(1, p, 1) for p in range(4)]
    assert names(read_rollouts(run, prompt=2, phase="A", order="oldest")) == [(s, 2, 0) for s in range(4)]
    assert read_rollouts(run, prompt=99, limit=5).num_rows == 0
    write_rollouts(tmp_path, SOURCES, steps=2, prompts=4)
    rows = read_rollouts(tmp_path, source="hard").to_pylist()
    assert [(r["source"], r["prompt"]) for r in rows] == 2 * [("hard", p) for p in (1, 1, 3, 3)]


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
    write_rollouts(tmp_path, "telemetry.rollouts=logprobs", steps=2, start=1)
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
        with pytest.raises(RunFolderError, match=r"step-00000001\.parquet") as error:
            read_rollouts(tmp_path)
        assert "\n" not in str(error.value)
    assert read_rollouts(tmp_path, step=0).num_rows == 8


def written(run: Path, *settings: str) -> RunRecords:
    """Three steps with their rollouts."""
    steps = write_rollouts(run, *settings, steps=3).items()
    records = [group_record(step, g, load("tiny")) for step, groups in steps for g in groups]
    return RunRecords([], {}, records, frozenset(), durable=3)


def test_the_audit_names_what_is_missing_doubled_or_foreign(tmp_path: Path) -> None:
    facts = written(tmp_path)
    first, *others = facts.records
    path = path_of(tmp_path, 0)
    rows = pq.read_table(path)
    assert rollout_rows(facts, tmp_path) == []
    for records, size in (([{**first, "size": 5}, *others], 5), (others, 0)):
        (line,) = rollout_rows(replace(facts, records=records), tmp_path)
        assert "group 0:0 of step 0 has 2 rollouts" in line
        assert f"trained with {size}" in line
    pq.write_table(rows.slice(1), path)
    (line,) = rollout_rows(facts, tmp_path)
    assert "group 0:0 of step 0 has 1 rollouts" in line
    pq.write_table(pa.concat_tables([rows, rows.slice(7)]), path)
    assert any("rollout 1 of group 0:3 of step 0" in line for line in rollout_rows(facts, tmp_path))
    pq.write_table(rows, path)
    path_of(tmp_path, 1).unlink()
    (line,) = rollout_rows(facts, tmp_path)
    assert "step 1" in line
    path.unlink()
    assert rollout_rows(facts, tmp_path) == [], "telemetry.rollouts_gib removes the oldest"
