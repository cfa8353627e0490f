"""What a one-machine run tells while it goes on, and at its end, where HORA never came into force or no
format was rewarded."""

import io
import json
from dataclasses import replace
from pathlib import Path
from time import sleep

import pytest
from rich.console import Console

from hora_rl.actors.data.datasets import load_held_out
from hora_rl.common import console as console_of
from hora_rl.common.config import Config
from hora_rl.common.console import working
from hora_rl.deploy.launch.evaluation import TrainingRun
from hora_rl.deploy.launch.summary import summarise
from hora_rl.deploy.monitor import terminal as progress_of
from hora_rl.deploy.monitor.run_state import Kind, RunState, Warning
from hora_rl.evaluation.report.tables import result_page, write_result
from hora_rl.evaluation.results import Result
from tests.support.jsonl import write_lines


@pytest.fixture
def state(run) -> RunState:
    return run.read()


@pytest.mark.parametrize("width", [80, 120])
def test_bar_step_time_left_and_rate_are_seen_at_80_columns(state, width):
    """The last screen of a long run whose numbers and warnings are as wide as they get."""
    wide = {**state.rates, "rollouts_in": 12345.0}
    long = (Warning(Kind.STALLED, "no optimizer step for 4000 s; " + "the coordinator waits " * 8),)
    learner = {**state.learner, "time/step": 10.0, "time/wait": 4.0}
    last = replace(state, steps=200, rates=wide, warnings=long, learner=learner)
    states = [replace(last, time=10.0 * i, step=97 + i) for i in range(4)]
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width, color_system=None)
    progress_of.show_bar(states, 200, progress_of.Teller(console))
    lines = [line.split("\r")[-1] for line in screen.getvalue().splitlines()]
    bar = next(line for line in reversed(lines) if "training" in line)
    assert "100/200" in bar
    assert "16:40 left" in bar
    assert "12345 rollouts/s" in bar
    assert "\u2501" in bar
    assert ("learner waits 40%" in bar) == (width == 120)
    assert screen.getvalue().count("no optimizer step for") == 1, "a warning is printed once"


def test_the_first_minute_says_what_is_starting_and_no_more_is_a_warning(state):
    missing = Warning(Kind.NOT_ALIVE, "no learner is alive")
    begun = replace(state, step=0, last_step_s=None, learner={}, parts=(), warnings=(missing,))
    assert "generator, verifier, coordinator, learner" in progress_of.figures(begun)
    pipe = io.StringIO()
    progress_of.Teller(Console(file=pipe))(begun)
    assert pipe.getvalue() == ""
    progress_of.Teller(Console(file=pipe))(replace(begun, last_step_s=30.0))
    assert "no learner is alive" in pipe.getvalue(), "it has trained before"


def test_a_warning_that_comes_and_goes_is_told_again_only_after_a_while(state):
    idle = (Warning(Kind.GENERATORS_IDLE, "generators idle"),)
    pipe = io.StringIO()
    tell = progress_of.Teller(Console(file=pipe))
    for time in (0, 1, 2, 40, 41, 600):
        here = idle if time != 2 else ()
        tell(replace(state, time=1000.0 + time, warnings=here))
    assert pipe.getvalue().count("generators idle") == 2


def test_a_pipe_is_told_soon_what_takes_long_and_then_again(monkeypatch):
    monkeypatch.setattr(console_of, "SOON_S", 0.05)
    monkeypatch.setattr(console_of, "LONG_S", 0.1)
    pipe = io.StringIO()
    with working("starting", 2, Console(file=pipe)) as begin:
        begin("Redis")
        begin("replicas")
        sleep(0.5)
    lines = pipe.getvalue().splitlines()
    assert lines[0].startswith("starting: replicas 1/2")
    assert len(lines) >= 2
    assert "Redis" not in pipe.getvalue()


RESULT = Result(
    benchmark="arithmetic", title="Arithmetic", model="m", step=0, temperature=1.0, seed=0, samples=2,
    ks=[1], problems=[0, 1], correct=[1, 0], formatted=None, cut=0, tokens=40, problem_set="x",
)  # fmt: skip


def config_with(**reward: object) -> Config:
    paths = {"model": {"path": "m"}, "data": {"path": "arithmetic"}, "evaluation": {"path": "arithmetic"}}
    return Config.model_validate(paths | {"reward": reward})


def told(config: Config, folder: Path) -> str:
    console = Console(width=300, record=True, file=io.StringIO())
    summarise(TrainingRun(config, "", folder, console))
    return console.export_text()


@pytest.mark.parametrize(("rules", "said"), [(["uniform"] * 2, True), (["uniform", "hit_utility"], False)])
def test_a_run_whose_gate_never_opened_says_so_with_the_figures(
    tmp_path: Path, rules: list[str], said: bool
) -> None:
    usual = {"successes": 0, "extra": 4, "size": 8, "tokens": 9}
    rewards = ({"batch": b, "rule": r, "rewards": {"format": 0.2 + b / 10}} for b, r in enumerate(rules))
    write_lines(tmp_path / "groups.jsonl", (usual | row for row in rewards))
    text = told(config_with(), tmp_path)
    assert ("never opened" in text) == ("was 0.30, and 3 batches in a row need 0.85" in text) == said
    assert "never opened" not in told(config_with(weights={"accuracy": 1.0}), tmp_path)


def test_a_format_that_nobody_rewards_is_not_reported_as_missed(tmp_path: Path) -> None:
    for formatted, shown in ((3, "75.0%"), (None, "│ format")):
        for step in (0, 2):
            write_result(tmp_path / "evaluation", replace(RESULT, step=step, formatted=formatted))
        text = told(config_with(), tmp_path)
        assert (shown in text) == (formatted is not None)
        table = result_page(replace(RESULT, formatted=formatted))
        assert ("75.0% in the format" in table) == (formatted is not None)


def test_a_run_ends_with_problems_and_completions_before_and_after(tmp_path: Path) -> None:
    rows = load_held_out(config_with().evaluation, config_with().evaluated.data).rows[:2]
    for step, texts in ((0, ("wrong", "[red]")), (2, ("x" * 300 + "right", rows[1].answer))):
        write_result(tmp_path / "evaluation", replace(RESULT, step=step, correct=[step, 1]))
        lines: list[dict] = [{"about": {}, "problems": ""}]
        usual = {"seed": 0, "length": 3, "finish_reason": "stop", "versions": [step, step]}
        usual |= {"rewards": {"accuracy": 1.0}, "success": step == 2}
        for number, said in ((1, ("another", "another")), (0, texts)):  # in the order of their completion
            lines += [{**usual, "problem": i, "sample": number, "text": t} for i, t in enumerate(said)]
        write_lines(tmp_path / "evaluation" / f"arithmetic-step{step}.samples.jsonl", lines)
    text = told(config_with(), tmp_path)
    examples = json.loads((tmp_path / "summary.json").read_text())["examples"]
    assert [(e["problem"], e["answer"]) for e in examples] == [(r.problem, r.answer) for r in rows]
    assert [e["before"]["hits"] for e in examples] == [0, 1]
    assert examples[0]["after"] == {"text": "x" * 300 + "right", "success": True, "hits": 2, "samples": 2}
    assert "[red]" in text
    assert "another" not in text
    assert "x" * 101 not in text
