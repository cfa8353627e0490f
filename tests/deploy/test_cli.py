"""Bad input gets one clear line on standard error, an exit status that is not zero, and nothing left
running."""

import errno
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from inspect import signature
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import ROOT, load
from hora_rl.deploy.cli import main
from hora_rl.deploy.launch.local import resolve
from hora_rl.deploy.machine.record import RunFile, write_config
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.families import write_model
from tests.support.jsonl import write_lines
from tests.support.programs import SETUP

Done = subprocess.CompletedProcess[str]
Hora = Callable[..., Done]


@pytest.fixture
def hora(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hora:
    """The command in this process: an interpreter for each would only load the same modules again."""

    def run(*arguments: str, **environment: str) -> Done:
        monkeypatch.delenv("HORA_REDIS_URL", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["hora", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code
        out = capsys.readouterr()
        return subprocess.CompletedProcess([], code if isinstance(code, int) else 0, out.out, out.err)

    return run


def assert_refused(done: Done, *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    said = [line for line in done.stderr.strip().splitlines() if not line.endswith(" s so far")]  # progress
    assert said[0].startswith("hora: ")
    assert "Traceback" not in done.stderr
    assert len(said) == 1
    for word in words:
        assert word in done.stderr


def test_the_version_is_that_of_the_installed_package(hora: Hora) -> None:
    done = hora("--version")
    assert (done.returncode, done.stdout) == (0, f"hora {metadata.version('hora-rl')}\n")


BUSY = "127.0.0.1:{taken} cannot be used|telemetry.http_port"
REFUSED = {
    "check tiny -s rollout.grup_size=16": "rollout.grup_size|unknown key|did you mean group_size?",
    "check tiny -s model.path=/nowhere/model": "model.path (/nowhere/model)|no such file or folder",
    "check tiny -s 'reward.weights={{fluency: 1.0}}'": "unknown reward 'fluency'",
    "check tiny -s reward.success=no.such:fn": "reward:|cannot load 'no.such:fn'",
    "check tiny -s allocation.rule=hit_utilty": "allocation.rule|'hit_utilty' is none of hit_utility",
    "check tiny -s allocation.rule=no.such:fn": "allocation.rule|'no.such:fn' cannot be loaded",
    "check tiny -s allocation.prior=gp": "allocation.features is not set|sentence-embedding model",
    "check tiny -s rollout.max_response_tokens=8000": "rollout.max_response_tokens|512 positions",
    "run tiny -s run.folder={here}/new -s telemetry.http_port={taken}": BUSY,
    "run tiny -s run.folder={here} -s telemetry.http_port={taken} --fresh": BUSY,
    "run tiny -s run.folder={here} -s telemetry.http_port={taken} --resume": BUSY,
    "run tiny -s run.folder={here}": "holds a run already|--resume|--fresh",
    "run tiny -s run.folder={here}/new --resume": "{here}/new/tiny|no run to resume",
    "run tiny -s run.folder={here} --resume -s rollout.group_size=32": (
        "must keep its configuration|changed: rollout.group_size"
    ),
    "run tiny -s run.folder={here} --resume -s evaluation.prompts=50": "changed: evaluation.prompts",
    "run tiny -s run.folder={here}/file": "run.folder (|choose a",
    "run tiny -s run.folder={here}/file/deeper": "run.folder (|choose a",
    "run tiny --fresh -s run.folder=/proc/self/fdinfo": "run.folder (|choose a",
    "train tiny": "queue.url is not set",
    "train tiny -s queue.url=redis://:secret@127.0.0.1:1/0": (
        "no Redis answers at redis://127.0.0.1:1/0|queue.url or HORA_REDIS_URL"
    ),
    "eval deploy/demo/model --benchmark arithmetic --samples 1 --out {here}/file": "--out (|choose a",
    "eval deploy/demo/model --k 1,x": "--k (1,x)",
    "plan tiny --group-size x": "--group-size (x)",
    "plan tiny --group-size 64 --samples 32": "group size 64",
    "plan tiny --rules hit_utilty": "hit_utilty",
    "plan tiny --gradients 9.5": "--gradients (9.5)",
    "plan tiny --gradients 9.5,1,64": "gradients = (9.5, 1, 64)",
    "plan tiny --out {here}/counts.jsonl": "counts.jsonl): exists",
    "plan {here}/none.jsonl": "{here}/none.jsonl",
    "stop {here}": "{here}: no run here",
    "monitor {here} --once": "{here}: no run here",
    "audit {here}": "{here}: no run here",
    "audit {here}/begun": "groups.jsonl|from its first step on",
    "runs {here}/none": "{here}/none: no such folder",
    "rollouts {here}/none": "{here}/none: no such folder",
    "rollouts {here}": "{here}/rollouts|telemetry.rollouts",
    "export {here}/begun {here}/out": "{here}/begun|config.yaml",
    "report {here}/none": "{here}/none: no such run folder",
    "report {here}": "{here}: holds neither groups.jsonl",
    "init {here}/file": "{here}/file exists already",
}
"""Command -> what its one line names, and the remedy."""


@pytest.mark.parametrize("command", REFUSED)
def test_a_command_that_cannot_work_names_why_and_starts_and_writes_nothing(
    command: str, tmp_path: Path, taken: int, hora: Hora, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in ("counting.stack", "local.stack", "local.starting"):
        monkeypatch.setattr(f"hora_rl.deploy.launch.{start}", Mock(side_effect=AssertionError("it starts")))
    write_config(tmp_path / "tiny", load("tiny", [f"run.folder={tmp_path}"]))
    RunFile(tmp_path / "begun").start("begun", 1)
    (tmp_path / "file").touch()
    write_lines(tmp_path / "counts.jsonl", ({"id": i, "successes": 1, "trials": 2} for i in range(320)))
    before = {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")}
    done = hora(*shlex.split(command.format(here=tmp_path, taken=taken)))
    assert_refused(done, *REFUSED[command].format(here=tmp_path, taken=taken).split("|"))
    assert "secret" not in done.stderr
    assert {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")} == before


def test_a_model_family_that_the_learner_cannot_train_is_named(
    tmp_path: Path, hora: Hora, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_model("opt", tmp_path / "model")
    capsys.readouterr()  # what writing it has shown
    assert_refused(hora("check", "tiny", "-s", f"model.path={folder}"), str(folder), "OPTForCausalLM")
    folder = write_model(
        "granite", tmp_path / "other", vocab_size=512, head_dim=32
    )  # its tokenizer has 262 tokens
    done = hora("check", "tiny", "-s", f"model.path={folder}")
    assert done.returncode == 0, done.stderr


def test_a_rule_and_a_reward_beside_the_command_are_found_as_ray_s_workers_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hora: Hora
) -> None:
    functions = "def gain(posterior, level): return posterior.mean / (1 + level)\ndef judge(*_): return 1.0\n"
    (tmp_path / "own_functions_of_mine.py").write_text(functions)
    monkeypatch.chdir(tmp_path)
    own = ["allocation.rule=own_functions_of_mine:gain", "reward.success=own_functions_of_mine:judge"]
    done = hora("check", "tiny", "-s", own[0], "-s", own[1])
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in sys.path


def test_the_same_names_stop_a_deployment() -> None:
    from hora_rl.deploy.app import build

    config = load("tiny", ["allocation.rule=hit_utilty"])
    assert len(signature(build).parameters) == 1, "Serve takes no other builder"
    with pytest.raises(ConfigError, match="hit_utilty"):
        build(config.model_dump(mode="json"))


@pytest.fixture
def without_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hora run` up to the moment at which its parts would start."""
    reached = Mock(side_effect=RunError("the stack was reached"))
    monkeypatch.setattr("hora_rl.deploy.launch.local.starting", reached)
    monkeypatch.setattr("hora_rl.deploy.launch.local.require", lambda *_: [])


def test_one_command_starts_a_run_and_resumes_it_when_it_is_queued_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hora: Hora
) -> None:
    monkeypatch.setattr("hora_rl.deploy.launch.local.require", lambda *_: [])
    settings, console = [f"run.folder={tmp_path}"], Console(quiet=True)
    assert resolve("tiny", settings, "resume or new", console).begun is None
    write_config(tmp_path / "tiny", load("tiny", settings))
    resolved = resolve("tiny", settings, "resume or new", console)
    assert resolved.begun == load(str(tmp_path / "tiny" / "config.yaml"))
    started = Mock()
    monkeypatch.setattr("hora_rl.deploy.launch.local.run_local", started)
    hora("run", "tiny", "--resume-or-start")
    assert started.call_args.args == ("tiny", (), "resume or new")


def test_the_command_that_resumes_a_run_works_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_a_stack: None, hora: Hora
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(hora("run", "tiny", "-s", "run.folder=mine"), "the stack was reached")
    command = RunFile(tmp_path / "mine" / "tiny").read().resume
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert_refused(hora(*command.split()[1:]), "the stack was reached")
    (tmp_path / "mine").rename(tmp_path / "moved")
    assert_refused(hora("run", "../moved/tiny/config.yaml", "--resume"), "not the one beside it")
    changed = ("-s", "run.folder=../moved", "-s", "generator.max_sequences=64")  # of each start
    assert_refused(hora("run", "tiny", "--resume", *changed), "the stack was reached")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_model_is_evaluated_within_the_limits_of_its_run_or_the_limits_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hora: Hora
) -> None:
    seen: list[Config] = []
    monkeypatch.setattr("hora_rl.deploy.launch.local.evaluate_local", lambda config, *_: seen.append(config))
    model = tmp_path / "RUN" / "model"
    shutil.copytree(load("tiny").model.path, model)
    alone = hora("eval", str(model))
    assert "limits of tiny: prompts of 32 tokens, responses of 128" in alone.stdout
    write_config(tmp_path / "RUN", load("tiny", ["rollout.max_response_tokens=77"]))
    RunFile(tmp_path / "RUN").start("tiny", os.getpid())
    beside = hora("eval", f"{model}/")
    assert f"limits of {tmp_path}/RUN/config.yaml: prompts of 32 tokens, responses of 77" in beside.stdout
    assert hora("eval", str(model), "--config", "tiny").stdout == ""
    assert [c.rollout.max_response_tokens for c in seen] == [128, 77, 128]
    assert {Path(c.model.path) for c in seen} == {model}


@pytest.mark.parametrize(
    ("number", "file"), [(errno.ENOSPC, None), (errno.EROFS, "/mine"), (errno.ENAMETOOLONG, "/mine")]
)
def test_a_disk_that_takes_no_file_is_one_line(
    monkeypatch: pytest.MonkeyPatch, hora: Hora, number: int, file: str | None
) -> None:
    failed = Mock(side_effect=OSError(number, os.strerror(number), file))
    monkeypatch.setattr("hora_rl.evaluation.report.runs_report.write_report", failed)
    assert_refused(hora("report", "any"), os.strerror(number), file or "", "choose another place")


def test_a_terminal_without_unicode_gets_a_question_mark() -> None:
    command = [sys.executable, "-m", "hora_rl.deploy", "plan", "--help"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"gradient, ?" in done.stdout


def test_a_run_is_set_aside_by_one_that_starts_afresh(
    tmp_path: Path, without_a_stack: None, hora: Hora
) -> None:
    write_config(tmp_path / "tiny", load("tiny"))
    (tmp_path / "tiny" / "steps.jsonl").touch()
    assert_refused(hora("run", "tiny", "-s", f"run.folder={tmp_path}", "--fresh"), "the stack was reached")
    assert (tmp_path / "tiny.1" / "steps.jsonl").exists()
    assert not (tmp_path / "tiny" / "steps.jsonl").exists()


def test_a_named_redis_that_holds_a_run_of_this_name_is_refused(tmp_path: Path, hora: Hora) -> None:
    elsewhere, keys = tmp_path / "elsewhere", Keys("tiny")
    with RedisServer(tmp_path / "mine") as server:
        settings = [f"run.folder={elsewhere}", "telemetry.http_port=0", f"queue.url={server.url}"]
        client = connect(server.url)
        client.hset(keys.state, mapping={"step": 2, "version": 2})
        tiny = (word for s in settings for word in ("-s", s))
        assert_refused(hora("run", "tiny", *tiny), "holds a run 'tiny' already")
        assert not elsewhere.exists()
        assert client.hget(keys.state, "step") == b"2"


def test_an_install_without_the_extra_says_what_to_install() -> None:
    """An interpreter that sees this project and the standard library, as one does after `pip install
    hora-rl`."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["hora"]
    module, _, function = entry.partition(":")
    code = f"{SETUP}from {module} import {function}; {function}()"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert_refused(done, "typer is not installed", "hora-rl[cpu]", "make setup")
