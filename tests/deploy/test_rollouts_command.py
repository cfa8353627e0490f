"""`hora rollouts` shows what was sampled, and nothing that was sampled moves the terminal."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hora_rl.common.errors import ConfigError, RunError
from hora_rl.deploy.cli import app
from hora_rl.deploy.monitor.escape import visible
from hora_rl.deploy.runs.rollout_list import Choice, json_line, order_of, rows_of, show_rollouts
from hora_rl.evaluation.rollout_table import read_rollouts
from hora_rl.learner.rollout_writer import Texts
from tests.support.rollouts import SOURCES, write_rollouts

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\x1b]8;;http://evil\x07click\x1b]8;;\x07\r\x08\x7f\x9b31m"
    "\u202egnp.exe\u2066\u200b\ufeff\u2028\U000e0041<script>alert(1)</script>[bold red]markup[/]"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_rollouts(folder, steps=3, prompts=2)
    return folder


def shown(run: Path, choice: Choice, *, full: bool = False, coloured: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=400 if full else 100, force_terminal=coloured)
    show_rollouts(run, choice, full=full, console=console)
    return out.getvalue()


def test_prompt_completion_rewards_and_times_are_shown(run: Path) -> None:
    text = shown(run, Choice(step=2, prompt=1))
    drawn = ("step 2 · prompt 1 · epoch 2", "format 1, accuracy 1", "log-prob -0.1", "#1 B miss", "7 tokens")
    for part in (*drawn, "first token after 500 ms", "by a1b2c3", "<answer>1"):
        assert part in text, part
    assert text.count("12+34=?") == 1, "a prompt is shown once for its rollouts"


def test_what_does_not_exist_is_said_in_a_line(run: Path, tmp_path: Path) -> None:
    assert shown(run, Choice(prompt=77)) == ("no rollouts of prompt 77; there are those of 3 steps, 0 to 2\n")
    with pytest.raises(RunError, match="no such folder"):
        show_rollouts(tmp_path / "none", Choice())
    with pytest.raises(ConfigError, match="two orders"):
        order_of(longest=True, least_likely=True)


def test_the_command_s_options_choose_as_they_say(run: Path) -> None:
    def rows(*options: str) -> list[dict]:
        done = CliRunner().invoke(app, ["rollouts", str(run), "--json", *options])
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert len(rows("--limit", "50")) == 12
    assert {r["success"] for r in rows("--success")} == {True}
    assert {r["success"] for r in rows("--failure", "--phase", "B")} == {False}
    assert {r["step"] for r in rows("--step", "1")} == {1}
    assert [r["length"] for r in rows("--longest", "--limit", "2")] == [7, 7]
    assert rows("--least-likely", "--limit", "1")[0]["logprob"] == -2.0
    assert rows("--source", "none") == []


def test_rollouts_of_one_data_source_are_chosen_by_its_name(tmp_path: Path) -> None:
    write_rollouts(tmp_path, SOURCES, steps=2, prompts=4)
    found = rows_of(tmp_path, Choice(source="hard", limit=50))
    assert [(r["source"], r["prompt"]) for r in found] == 2 * [("hard", p) for p in (1, 1, 3, 3)]


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer that spells the hostile text stands for a model that learned to."""
    monkeypatch.setattr(Texts, "completion", lambda self, rollout: HOSTILE)
    monkeypatch.setattr(Texts, "prompt", lambda self, tokens: HOSTILE)
    write_rollouts(tmp_path, steps=1, prompts=1)
    return tmp_path


def test_hostile_output_stays_text_in_the_terminal(hostile: Path) -> None:
    assert read_rollouts(hostile)["completion"].to_pylist()[0] == HOSTILE  # kept as it was sampled
    text = shown(hostile, Choice(), full=True)
    forbidden = [c for c in HOSTILE if not c.isprintable()]
    assert not [c for c in text if c in forbidden]
    for written in ("\\x1b[2J", "\\x1b]0;owned\\x07", "\\u202egnp.exe", "\\u2028", "\\U000e0041", "\\x9b31m"):
        assert written in "".join(text.split()), written  # wherever a line was wrapped
    assert "[boldred]markup[/]" in "".join(text.split())
    coloured = shown(hostile, Choice(), full=True, coloured=True)
    assert "\x1b[2J" not in coloured
    assert "\x1b]" not in coloured
    assert "\u202e" not in coloured


def test_hostile_output_stays_ascii_in_json(hostile: Path) -> None:
    (row, _) = read_rollouts(hostile).to_pylist()
    line = json_line(row)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["completion"] == HOSTILE


def test_ordinary_text_of_any_script_is_left_alone() -> None:
    for text in ("a\tb\nc", "naïve ∑ α≤β", "答案是 42", "نعم", "é", "👍🏽"):
        assert visible(text) == text
