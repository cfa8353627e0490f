import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect
from hora_rl.common.load import dump_yaml, load
from hora_rl.deploy.machine.record import RunFile, stop, write_config
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.machine.run_redis import issue_token, redis_of
from hora_rl.deploy.machine.signals import stopped_by_signals
from hora_rl.deploy.runs.listing import list_runs, show_runs
from tests.support.ports import until

# Stands for the launcher: says that it runs, then waits for Ctrl-C and takes a moment to shut down.
LAUNCHER = """
import sys, time
from rich.console import Console
from hora_rl.deploy.machine.record import RunFile
with RunFile(sys.argv[1]).recorded("demo", "hora run --resume", Console(stderr=True), http_port=8000):
    print("up", flush=True)
    try:
        time.sleep(60)
    finally:
        time.sleep(0.3)
"""


def _as_a_script_starts_with_an_ampersand() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture
def launcher(tmp_path):
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path / "demo")]
    how = {"stdout": subprocess.PIPE, "text": True, "preexec_fn": _as_a_script_starts_with_an_ampersand}
    process = subprocess.Popen(command, **how)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.wait()


def test_runs_are_listed_newest_first_with_last_whole_step_reward_and_reason(tmp_path, capsys):
    for name in ("old", "demo.1", "odd"):
        RunFile(tmp_path / name).start(name.removesuffix(".1"), os.getpid())
        time.sleep(0.01)
    steps = '{"step": 0, "reward": 0.1}\n{"step": 1, "reward": 0.25}\n{"step": 2, "rew'
    (tmp_path / "demo.1" / "steps.jsonl").write_text(steps)
    RunFile(tmp_path / "demo.1").end("failed", "the disk is [full]")
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "odd" / "run.json").write_text('{"run": "odd", "colour": 3}')
    (tmp_path / "old" / "steps.jsonl").write_text("\0\0\0\n")  # after a power failure
    runs = list_runs(tmp_path)
    assert [(r.run, r.state) for r in runs] == [("demo", "failed"), ("old", "running"), ("odd", "unreadable")]
    assert "steps.jsonl" in runs[1].reason
    assert "colour" in runs[2].reason
    show_runs(runs)
    shown = " ".join(capsys.readouterr().out.split())
    assert "demo (demo.1) failed 2 0.250" in shown
    assert "[full]" in shown
    show_runs([])
    assert "no runs yet" in capsys.readouterr().out


def started(folder: Path, pid: int) -> tuple[RunFile, dict]:
    """The record of a run whose launcher is process `pid` of this machine."""
    file = RunFile(folder)
    file.start("demo", pid)
    return file, json.loads(file.path.read_text())


def test_another_process_with_the_same_number_is_not_the_run(tmp_path):
    file, record = started(tmp_path / "demo", os.getpid())
    file.path.write_text(json.dumps({**record, "ticks": record["ticks"] - 1}))
    assert not file.read().alive
    namespace = record["machine"].partition("/")[2]
    file.path.write_text(json.dumps({**record, "machine": f"another-boot/{namespace}"}))
    assert not file.read().alive, "the machine was started anew"


def test_a_clock_that_is_set_makes_no_run_dead_or_alive(tmp_path, monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    up, gone = RunFile(tmp_path / "up"), RunFile(tmp_path / "gone")
    up.start("up", os.getpid())
    gone.start("gone", ended.pid)
    now = time.time()
    for days in (-400, -1, 1, 400):
        monkeypatch.setattr(time, "time", lambda days=days: now + days * 86400)
        assert up.read().alive
        assert not gone.read().alive
        with pytest.raises(RunError, match="up already"):
            up.refuse_if_alive()


def test_a_run_in_another_container_of_this_machine_is_taken_at_its_word(tmp_path):
    file, record = started(tmp_path / "demo", 2**22 + 1)
    boot = record["machine"].partition("/")[0]
    file.path.write_text(json.dumps({**record, "machine": f"{boot}/pid:[1]"}))
    assert file.read().alive
    file.path.write_text(json.dumps({**record, "host": "renamed"}))
    assert not file.read().alive, "a machine's name may change; its boot and its processes do not"


def test_stop_ends_the_launcher_as_ctrl_c_does_and_says_how_to_resume(tmp_path, launcher):
    said = stop(tmp_path / "demo", limit_s=20)
    assert "--resume" in said
    assert RunFile(tmp_path / "demo").read().state == "stopped"
    with pytest.raises(RunError, match="was stopped"):
        stop(tmp_path / "demo")


def test_a_run_of_another_machine_is_taken_at_its_word_and_stopped_there(tmp_path):
    file, record = started(tmp_path / "demo", 2**22 + 1)
    assert list_runs(tmp_path)[0].state == "lost"
    file.path.write_text(json.dumps({**record, "host": "far.away", "machine": "another-boot/pid:[1]"}))
    assert list_runs(tmp_path)[0].state == "running"
    with pytest.raises(RunError, match=r"the run is on far\.away; stop it there"):
        stop(tmp_path / "demo")
    os.utime(file.path, (time.time() - 300,) * 2)
    assert list_runs(tmp_path)[0].state == "lost", "that machine has been silent for minutes"


def test_a_run_that_is_up_is_not_started_again_and_one_without_launcher_has_failed(tmp_path, launcher):
    with (
        pytest.raises(RunError, match=r"demo is up already \(process \d+ on .*`hora stop .*` ends it"),
        RunFile(tmp_path / "demo").recorded("demo", "hora run", Console(file=io.StringIO())),
    ):
        pass
    assert RunFile(tmp_path / "demo").read().pid == launcher.pid
    launcher.kill()
    launcher.wait()
    with pytest.raises(RunError, match="gone already"):
        stop(tmp_path / "demo")
    assert RunFile(tmp_path / "demo").read().state == "failed"


def test_a_launcher_keeps_saying_that_it_is_there_and_a_full_disk_silences_it_only_meanwhile(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("hora_rl.deploy.machine.record.BEAT_S", 0.01)
    full = OSError(28, "No space left on device")
    with RunFile(tmp_path).recorded("demo", "hora run", Console(file=io.StringIO())):
        with monkeypatch.context() as broken:
            broken.setattr("hora_rl.deploy.machine.record.replace_text", Mock(side_effect=full))
            time.sleep(0.1)
        assert capsys.readouterr().out.count("No space left on device") == 1
        first = RunFile(tmp_path).read()
        until(lambda: RunFile(tmp_path).read().seen != first.seen)


ENDINGS = [(None, "finished", ""), (KeyboardInterrupt(), "stopped", "interrupted")]
ENDINGS += [(RunError("full"), "failed", "full")]


@pytest.mark.parametrize(("error", "state", "reason"), ENDINGS)
def test_what_becomes_of_a_run_is_recorded_and_said(tmp_path, error, state, reason):
    console = Console(file=io.StringIO())
    assert RunFile(tmp_path).ending() is None
    with suppress(RunError, SystemExit), RunFile(tmp_path).recorded("demo", "hora train X", console):
        assert RunFile(tmp_path).ending() is None
        assert list_runs(tmp_path.parent)[0].state == "running"
        if error:
            raise error
    record = RunFile(tmp_path).read()
    assert (record.state, record.reason) == (state, reason)
    ending = RunFile(tmp_path).ending()
    assert ending is not None
    assert ("resume with: hora train X" in ending) == (error is not None)
    assert ("resume with: hora train X" in console.file.getvalue()) == (error is not None)


def test_an_error_after_a_stop_was_asked_for_is_a_stop(tmp_path):
    def ended_by_the_same_signal() -> None:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        raise RunError("a part died")

    recorded = RunFile(tmp_path).recorded("demo", "hora train X", Console(file=io.StringIO()))
    with pytest.raises(SystemExit), stopped_by_signals(), recorded:
        ended_by_the_same_signal()
    assert RunFile(tmp_path).read().state == "stopped"


def test_a_running_run_is_watched_through_its_embedded_redis_until_it_ends(tmp_path):
    file, _ = started(tmp_path / "demo", os.getpid())
    with pytest.raises(RunError, match=r"queue\.url"):
        redis_of(str(tmp_path / "demo"))
    with RedisServer(tmp_path / "demo" / "redis") as server:
        url, run = redis_of(str(tmp_path / "demo"))
        assert (url, run) == (server.url, "demo")
        assert connect(url).ping()
        assert (server.folder / "password").read_text() not in url
    file.end("finished")
    with pytest.raises(RunError, match="nothing to watch, the run finished"):
        redis_of(str(tmp_path / "demo"))


@pytest.mark.parametrize("source", ["folder", "configuration"])
def test_a_run_that_is_up_is_watched_in_its_own_redis_whatever_is_named(tmp_path, monkeypatch, source):
    monkeypatch.setenv("HORA_REDIS_URL", "redis://elsewhere:6379")
    folder = tmp_path / "demo"
    (folder / "redis").mkdir(parents=True)
    (folder / "redis" / "url").write_text("unix:///its/own\n")
    config = load("tiny", ["run.name=demo", f"run.folder={tmp_path}", "queue.url=redis://third:6379"])
    (folder / "config.yaml").write_text(dump_yaml(config))
    asked = str(folder if source == "folder" else folder / "config.yaml")
    RunFile(folder).start("demo", os.getpid(), http_port=8000)
    assert redis_of(asked) == ("unix:///its/own", "demo")
    RunFile(folder).start("demo", os.getpid())
    assert redis_of(asked) == ("redis://elsewhere:6379", "demo"), "a learner beside a served application"
    RunFile(folder).end("finished")
    assert redis_of(asked) == ("redis://elsewhere:6379", "demo")
    monkeypatch.delenv("HORA_REDIS_URL")
    assert redis_of(asked) == ("redis://third:6379", "demo")


SECRET = ["queue.url=redis://:s3cret@host:6379", "queue.url=redis://host:6379?password=s3cret"]
SECRET += ["telemetry.on_alert=https://host/s3cret"]
PLAIN = ["queue.url=redis://host:6379?password_file=/secret", "queue.url=null"]


@pytest.mark.parametrize("setting", [*SECRET, *PLAIN])
def test_a_configuration_with_a_secret_in_it_is_its_owner_s_alone(tmp_path, setting):
    (tmp_path / "config.yaml").write_text("of an earlier start, for everyone")
    config = load("tiny", [setting])
    write_config(tmp_path, config)
    assert load(str(tmp_path / "config.yaml")) == config
    assert bool((tmp_path / "config.yaml").stat().st_mode & 0o077) == (setting in PLAIN)


def test_a_token_is_kept_over_restarts_and_only_its_owner_can_read_it(tmp_path, redis_url):
    token = issue_token(redis_url, "tokens", tmp_path)
    assert issue_token(redis_url, "tokens", tmp_path) == token
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0
    stored = connect(redis_url).hget("hora:{tokens}:state", "token_sha256")
    assert token.encode() not in stored
