"""`hora monitor` and its screen, Prometheus' figures and heartbeats, on a real Redis. A run that has ended is
looked at as it was, from its folder alone, in which nothing changes."""

import io
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import redis
from rich.console import Console
from starlette.testclient import TestClient

from hora_rl.actors.coordinator.deployment import oldest_replica
from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect
from hora_rl.common.live.telemetry import record_evaluation
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.monitor import prometheus
from hora_rl.deploy.monitor.run_state import Kind
from hora_rl.deploy.monitor.screen import screen
from hora_rl.deploy.monitor.terminal import monitor
from hora_rl.deploy.monitor.web import create_app
from hora_rl.deploy.runs.ended_run import source_of
from tests.support.ports import until
from tests.support.programs import run_well
from tests.support.synthetic_run import SyntheticRun, config_of, play, write_ended

MONITOR = "import sys; from hora_rl.deploy.monitor.terminal import monitor; monitor(sys.argv[1], sys.argv[2])"


def drawn(run: SyntheticRun, width=80) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(screen(run.read(), width))
    return console.export_text().splitlines()


def exported(run: SyntheticRun) -> dict[tuple[str, ...], float]:
    return {(name, *tags.values()): value for name, tags, value in prometheus.gauges(run.read())}


@pytest.mark.parametrize(("width", "height"), [(80, 40), (120, 30)])
def test_the_screen_tells_everything_within_its_size(run, width, height):
    lines = drawn(run, width)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= height
    for word in ("step 5 of 40", "v5", "0/24", "a1b2c3", "d4e5f6", "waits for weights", "Phase B"):
        assert word in "\n".join(lines), word


def test_the_screen_can_be_drawn_before_anything_has_happened(redis_url):
    text = "\n".join(drawn(SyntheticRun(redis_url, config_of("nothing-yet"))))
    assert "learner: not seen" in text
    assert "no generator is alive" in text


def test_a_redis_without_room_is_said_and_nobody_is_called_dead(run):
    assert run.read(3600).warns(Kind.NOT_ALIVE)
    run.redis.config_set("maxmemory", 2**20 // 2)
    try:
        state = run.read(3600)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            run.redis.set("x", "y")
    finally:
        run.redis.config_set("maxmemory", 0)
    assert state.warns(Kind.REDIS_FULL)
    assert not state.warns(Kind.NOT_ALIVE)
    assert not run.read(3600).warns(Kind.REDIS_FULL)


def test_of_many_replicas_those_in_trouble_are_shown_and_the_rest_added_up(run):
    for i in range(48):
        run.says(f"generator/g{i:02}", version=1 if i == 40 else 5, running=3, waiting=2, cache=0.1)
    lines = drawn(run)
    first = next(i for i, line in enumerate(lines) if line.startswith("generator "))
    assert re.match(r"g40 +v1 +3 +2 ", lines[first + 1])
    assert lines[first + 9].startswith("and 42 more, ")


def test_the_newest_evaluation_names_the_weights_that_it_met(run):
    for step, value in ((0, 0.2), (20, 0.3), (40, 0.6)):
        found = {"pass@1": value, "version/min": step, "version/max": step + 3}
        record_evaluation(run.redis, run.name, step, found)
    lines, figures = drawn(run), exported(run)
    assert "held out v40 to v43  pass@1 60.0%" in lines
    assert figures["hora_pass_at_k", "1"] == 0.6
    assert [figures["hora_evaluation_version", stat] for stat in ("step", "min", "max")] == [40, 40, 43]


def test_a_replica_that_is_late_is_named_and_the_oldest_is_known(run):
    work = {"running": 3, "waiting": 0, "cache": 0.1, "checksum": "one"}
    run.says("generator/late", **work, version=1)
    run.says("generator/new", **work, version=5)
    state, figures = run.read(), exported(run)
    behind = [str(w) for w in state.warnings if w.kind == Kind.REPLICA_BEHIND]
    assert behind == ["generator late holds version 1 of 5"]
    assert figures["hora_replicas_behind",] == 1
    assert oldest_replica(run.redis.hgetall(run.keys.parts), time.time()) == 1


def test_a_replica_that_died_runs_nothing_in_prometheus(run, monkeypatch):
    kept: dict[tuple[str, ...], float] = {}  # the last value of each series, as Ray keeps it

    def series_of(name, *_):
        return Mock(set=lambda value, tags: kept.update({(name, *tags.values()): value}))

    monkeypatch.setattr(prometheus, "Gauge", series_of)
    monkeypatch.setattr(prometheus, "Counter", series_of)
    export, series = prometheus.Exporter(), ("hora_replica_cache_ratio", run.name, "died")
    run.says("generator/died", version=2, running=3, waiting=0, cache=0.1)
    export(run.read())
    assert kept[series] == 0.1
    run.redis.hdel(run.keys.parts, "generator/died")
    export(run.read())
    assert kept[series] == 0


def test_a_pipe_gets_plain_lines_until_the_run_ends(redis_url, run):
    run.redis.hset(run.keys.state, "error", "the disk is full")
    said = run_well(sys.executable, "-c", MONITOR, redis_url, run.name).stdout
    assert "\x1b" not in said
    assert re.search(r"stopped step 5/40 v5 queue 0/24 .*reward 0\.\d+ \| stopped: the disk is full", said)


class Terminal:
    """`hora monitor` in a terminal of its own. `seen` is what it has printed."""

    def __init__(self, *args: str) -> None:
        self.primary, secondary = pty.openpty()
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), secondary)
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"}
        command = [sys.executable, "-c", MONITOR, *args]
        self.process = subprocess.Popen(command, env=env, start_new_session=True, **ends)
        os.close(secondary)
        self.seen = b""

    def read_until(self, word: bytes) -> None:
        """Read on until `word` is seen or the program has ended: it waits for a terminal that nobody
        reads."""
        deadline = time.monotonic() + 30
        while word not in self.seen and time.monotonic() < deadline:
            if select.select([self.primary], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.primary, 65536)
                except OSError:  # the other end is closed
                    return

    def end(self) -> int:
        self.read_until(b"the end of the program")
        os.close(self.primary)
        return self.process.wait(20)


@pytest.mark.system
def test_a_terminal_is_refreshed_in_place_and_ctrl_c_leaves_no_trace(redis_url, run):
    terminal = Terminal(redis_url, run.name)
    terminal.read_until(b"step 5")
    run.redis.hset(run.keys.state, "step", 6)
    terminal.read_until(b"step 6 of 40")
    terminal.process.send_signal(2)
    assert terminal.end() == 0
    assert b"step 6 of 40" in terminal.seen
    assert b"\x1b[?1049h" in terminal.seen  # the alternate screen: scrollback is left alone
    assert b"Traceback" not in terminal.seen


def test_a_terminal_that_watches_a_finished_run_keeps_its_last_screen_and_ends(redis_url, run):
    run.redis.hset(run.keys.state, "step", run.config.learner.steps)
    terminal = Terminal(redis_url, run.name)
    assert terminal.end() == 0
    left = terminal.seen.rpartition(b"\x1b[?1049l")[2]
    assert b"finished" in left
    assert b"step 40 of 40" in left


@pytest.mark.parametrize("terminal", [True, False])
def test_a_monitor_ends_with_a_run_whose_redis_is_gone_and_says_how(tmp_path, monkeypatch, capsys, terminal):
    monkeypatch.setattr("hora_rl.deploy.monitor.terminal.PERIOD_S", 0.05)
    monkeypatch.setattr("hora_rl.deploy.monitor.terminal.LINE_PERIOD_S", 0.05)
    monkeypatch.setattr(Console, "is_terminal", property(lambda _: terminal))
    file = RunFile(tmp_path / "demo")
    file.start("demo", os.getpid(), http_port=8000, resume="hora run X --resume")
    with RedisServer(tmp_path / "demo" / "redis") as server:
        play(SyntheticRun(server.url, config_of("demo")), 2)
        watching = threading.Thread(target=lambda: monitor(server.url, "demo", file=file), daemon=True)
        watching.start()
        time.sleep(0.5)
    time.sleep(0.3)
    assert watching.is_alive(), "a run that is up may find its Redis again"
    file.end("stopped", "interrupted")
    watching.join(20)
    assert not watching.is_alive()
    assert "demo was stopped; resume with: hora run X --resume" in capsys.readouterr().out


def contents(run: Path) -> dict[Path, tuple[int, int]]:
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in run.rglob("*")}


def test_a_finished_run_is_shown_as_it_was_and_its_folder_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "over"
    write_ended(run)
    before = contents(run)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 5000)
    with source_of(str(run)) as source:
        state = source.read(connect(source.url), source.run)
        monitor(source.url, source.run, once=True, read=source.read)
    assert (state.status, state.step, state.warnings) == ("finished", 3, ())
    assert state.last_step_s < 60, "seconds before the end, not before now"
    assert len(state.of("generator")) == 2
    shown = capsys.readouterr().out
    assert "step 3 of 3" in shown
    assert "silent" not in shown
    assert contents(run) == before


def test_a_run_that_failed_says_why_on_the_page(tmp_path: Path) -> None:
    run = tmp_path / "over"
    write_ended(run, "failed", 2, "the learner stopped: no memory")
    with source_of(str(run)) as source:
        app = create_app(source.url, source.run, read=source.read)
        with TestClient(app, base_url="http://localhost") as client:
            until(lambda: client.get("/status").status_code == 200)
            status, history = client.get("/status").json(), client.get("/history").json()
    assert (status["status"], status["step"]) == ("stopped", 2)
    assert [w["kind"] for w in status["warnings"]] == [Kind.STOPPED]
    assert "no memory" in status["warnings"][0]["text"]
    assert history["steps"]["step"] == [0, 1]


def test_a_folder_that_kept_no_redis_is_one_line(tmp_path: Path) -> None:
    run = tmp_path / "over"
    write_ended(run, "stopped", 1)
    for file in (run / "redis").iterdir():
        file.unlink()
    with pytest.raises(RunError, match="stopped"), source_of(str(run)):
        pass
