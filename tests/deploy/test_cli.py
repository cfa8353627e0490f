"""Bad input gets one clear line on standard error, an exit status that is not zero, and nothing left
running."""

import errno
import os
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


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.grup_size=16", ["rollout.grup_size", "unknown key", "did you mean group_size?"]),
        ("model.path=/nowhere/model", ["model.path (/nowhere/model)", "no such file or folder"]),
        ("reward.weights={fluency: 1.0}", ["unknown reward 'fluency'"]),
        ("reward.success=no.such:fn", ["reward:", "cannot load 'no.such:fn'"]),
        ("allocation.rule=hit_utilty", ["allocation.rule", "'hit_utilty' is none of hit_utility"]),
        ("allocation.rule=no.such:fn", ["allocation.rule", "'no.such:fn' cannot be loaded"]),
        ("allocation.prior=gp", ["allocation.features is not set", "sentence-embedding model"]),
        ("rollout.max_response_tokens=8000", ["rollout.max_response_tokens", "512 positions"]),
    ],
)
def test_an_impossible_value_is_named_with_its_key_and_the_reason(
    override: str, words: list[str], hora: Hora
) -> None:
    assert_refused(hora("check", "tiny", "-s", override), *words)


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


@pytest.mark.parametrize("how", [[], ["--fresh"], ["--resume"]])
def test_a_port_in_use_is_named_before_anything_starts_or_is_written(
    tmp_path: Path, taken: int, hora: Hora, how: list[str]
) -> None:
    if how:
        write_config(tmp_path / "tiny", load("tiny", [f"run.folder={tmp_path}"]))
    before = {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")}
    done = hora("run", "tiny", "-s", f"telemetry.http_port={taken}", "-s", f"run.folder={tmp_path}", *how)
    assert_refused(done, f"127.0.0.1:{taken} cannot be used", "telemetry.http_port")
    assert {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")} == before


@pytest.fixture
def without_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hora run` up to the moment at which its parts would start."""
    reached = Mock(side_effect=RunError("the stack was reached"))
    monkeypatch.setattr("hora_rl.deploy.launch.local.starting", reached)
    monkeypatch.setattr("hora_rl.deploy.launch.local.require", lambda *_: [])


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ("rollout.group_size=32", "must keep its configuration; changed: rollout.group_size"),
        ("evaluation.prompts=50", "must keep its configuration; changed: evaluation.prompts"),
        ("generator.max_sequences=64", "the stack was reached"),
    ],
)
def test_a_resumed_run_keeps_what_its_results_depend_on(
    tmp_path: Path, without_a_stack: None, hora: Hora, change: str, answer: str
) -> None:
    folder = f"run.folder={tmp_path}"
    write_config(tmp_path / "tiny", load("tiny", [folder]))
    assert_refused(hora("run", "tiny", "--resume", "-s", folder, "-s", change), answer)


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
    assert_refused(hora("run", "tiny", "--resume", "-s", "run.folder=../moved"), "the stack was reached")
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
    "command",
    [
        ["run", "tiny", "-s", "run.folder={file}"],
        ["run", "tiny", "-s", "run.folder={file}/deeper"],
        ["run", "tiny", "--fresh", "-s", "run.folder=/proc/self/fdinfo"],
        ["eval", "deploy/demo/model", "--benchmark", "arithmetic", "--samples", "1", "--out", "{file}"],
    ],
)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, hora: Hora, command: list[str]) -> None:
    (tmp_path / "file").write_text("")
    done = hora(*(word.format(file=tmp_path / "file") for word in command))
    assert_refused(done, "--out (" if "--out" in command else "run.folder (", "; choose a")


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


def test_an_unreachable_redis_is_named_without_its_password(hora: Hora) -> None:
    done = hora("train", "tiny", HORA_REDIS_URL="redis://:secret@127.0.0.1:1/0")
    assert_refused(done, "no Redis answers at redis://127.0.0.1:1/0", "queue.url or HORA_REDIS_URL")
    assert "secret" not in done.stderr
    assert_refused(hora("train", "tiny"), "queue.url is not set")


def test_a_run_is_never_overwritten_and_set_aside_by_one_that_starts_afresh(
    tmp_path: Path, without_a_stack: None, hora: Hora
) -> None:
    write_config(tmp_path / "tiny", load("tiny"))
    (tmp_path / "tiny" / "steps.jsonl").touch()
    command = ("run", "tiny", "-s", f"run.folder={tmp_path}")
    assert_refused(hora(*command), "holds a run already", "--resume", "--fresh")
    assert_refused(hora(*command, "--fresh"), "the stack was reached")
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
