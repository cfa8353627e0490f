import asyncio
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
import zlib
from typing import ClassVar

import pytest
import redis
from rich.console import Console

from hora_rl.actors.coordinator.history_writer import oldest_replica
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, connect_async, text_of
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import heartbeat_now, keep_beating, record_evaluation, stop_beating
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.monitor import prometheus
from hora_rl.deploy.monitor.prometheus import gauges
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import Kind
from hora_rl.deploy.monitor.screen import screen
from hora_rl.deploy.monitor.terminal import monitor
from tests.support.synthetic_run import SyntheticRun, config_of, play

MONITOR = "import sys; from hora_rl.deploy.monitor.terminal import monitor; monitor(sys.argv[1], sys.argv[2])"


@pytest.fixture
def run(redis_url, request):
    run = SyntheticRun(redis_url, config_of(f"run{zlib.crc32(request.node.name.encode())}"))
    play(run, 5)
    return run


def drawn(state, width=80) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(screen(state, width))
    return console.export_text().splitlines()


def test_parts_without_a_place_are_told_on_the_screen(run):
    name, keys = run.config.run.name, run.keys
    run.redis.hset(keys.state, mapping=changed(unplaced="no place for 1 of 2 generator: too few CPUs"))
    state = read_run(run.redis, name)
    assert state.warns(Kind.UNPLACED)
    assert "! no place for 1 of 2 generator: too few CPUs" in "\n".join(drawn(state))
    run.redis.hset(keys.state, mapping=changed(unplaced=""))
    assert not read_run(run.redis, name).warns(Kind.UNPLACED)


def test_a_redis_without_room_is_said_and_nobody_is_called_dead(run):
    later = time.time() + 3600
    assert read_run(run.redis, run.config.run.name, later).warns(Kind.NOT_ALIVE)
    run.redis.config_set("maxmemory", 2**20 // 2)
    try:
        state = read_run(run.redis, run.config.run.name, later)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            run.redis.set("x", "y")
    finally:
        run.redis.config_set("maxmemory", 0)
    assert state.warns(Kind.REDIS_FULL)
    assert not state.warns(Kind.NOT_ALIVE)
    assert not read_run(run.redis, run.config.run.name, later).warns(Kind.REDIS_FULL)


def test_json_is_the_reading(redis_url, run, capsys):
    monitor(redis_url, run.config.run.name, json_=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["step"] == 5
    assert shown["totals"]["rollouts_in"] == 5 * 8 * 16
    assert shown["phase_a"].keys() <= {str(c) for c in range(9)}


def test_of_many_replicas_those_in_trouble_are_shown_and_the_rest_added_up(run):
    name = run.config.run.name
    for i in range(48):
        said = {"version": 1 if i == 40 else 5, "running": 3, "waiting": 2, "cache": 0.1}
        heartbeat_now(run.redis, name, f"generator/g{i:02}", said)
    lines = drawn(read_run(run.redis, name))
    first = next(i for i, line in enumerate(lines) if line.startswith("generator "))
    assert re.match(r"g40 +v1 +3 +2 ", lines[first + 1])
    assert lines[first + 9].startswith("and 42 more, ")


def test_evaluations_during_training_are_a_curve_and_name_the_weights_they_met(run):
    name = run.config.run.name
    for step, value in ((0, 0.2), (20, 0.3), (40, 0.6)):
        found = {"pass@1": value, "version/min": step, "version/max": step + 3}
        record_evaluation(run.redis, name, step, found)
    state = read_run(run.redis, name)
    lines = drawn(state)
    assert "held out v40 to v43  pass@1 60.0%" in lines
    assert "over 3 evaluations  pass@1 ▃▄█" in lines
    exported = {(n, *tags.values()): value for n, tags, value in gauges(state)}
    assert exported["hora_pass_at_k", "1"] == 0.6
    assert [exported["hora_evaluation_version", stat] for stat in ("step", "min", "max")] == [40, 40, 43]


def test_a_replica_that_is_pinned_for_an_evaluation_is_shown_as_that_and_is_not_late(run):
    name = run.config.run.name
    late = {"version": 1, "running": 3, "waiting": 0, "cache": 0.1, "checksum": "one"}
    heartbeat_now(run.redis, name, "generator/late", late)
    pinned = {**late, "version": 2, "checksum": "two", "pinned": 2}
    heartbeat_now(run.redis, name, "generator/stays", {**pinned, "state": "pinned at v2 for an evaluation"})
    heartbeat_now(run.redis, name, "generator/was", {**late, "version": 3, "released": True})
    state = read_run(run.redis, name)
    behind = [str(w) for w in state.warnings if w.kind == Kind.REPLICA_BEHIND]
    assert behind == ["generator late holds version 1 of 5"]
    assert not state.warns(Kind.WEIGHTS_DISAGREE)
    assert any(re.match(r"stays +v2 pinned +3 ", line) for line in drawn(state))
    exported = {(n, *tags.values()): value for n, tags, value in gauges(state)}
    assert exported["hora_replicas_behind",] == 1
    assert (exported["hora_replica_pinned", "stays"], exported["hora_replica_pinned", "late"]) == (1, 0)
    heard = run.redis.hgetall(Keys(name).parts)
    assert oldest_replica(heard, time.time()) == 1
    run.redis.hdel(Keys(name).parts, "generator/late")
    assert oldest_replica(run.redis.hgetall(Keys(name).parts), time.time()) == 3


class LastValues:
    """Stands in for Ray's gauges and counters: keeps the last value of each series, as Ray does."""

    kept: ClassVar[dict[tuple[str, ...], float]] = {}

    def __init__(self, name: str, *_: object) -> None:
        self._name = name

    def set(self, value: float, tags: dict[str, str]) -> None:
        self.kept[self._name, *tags.values()] = value

    inc = set


def test_a_replica_that_died_pinned_is_pinned_no_more_in_prometheus(run, monkeypatch):
    name, part = run.config.run.name, "generator/died"
    monkeypatch.setattr(prometheus, "Gauge", LastValues)
    monkeypatch.setattr(prometheus, "Counter", LastValues)
    export, series = prometheus.Exporter(), ("hora_replica_pinned", name, "died")
    heartbeat_now(run.redis, name, part, {"version": 2, "pinned": 2})
    export(read_run(run.redis, name))
    assert LastValues.kept[series] == 1
    run.redis.hdel(Keys(name).parts, part)
    export(read_run(run.redis, name))
    assert LastValues.kept[series] == 0


def test_the_screen_can_be_drawn_before_anything_has_happened(redis_url):
    run = SyntheticRun(redis_url, config_of("nothing-yet"))
    text = "\n".join(drawn(read_run(run.redis, "nothing-yet")))
    assert "learner: not seen" in text
    assert "no generator is alive" in text


def test_a_pipe_gets_plain_lines_until_the_run_ends(redis_url, run):
    run.redis.hset(run.keys.state, "error", "the disk is full")
    done = subprocess.run(
        [sys.executable, "-c", MONITOR, redis_url, run.config.run.name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert re.search(
        r"stopped step 5/40 v5 queue 0/24 .*reward 0\.\d+ \| stopped: the disk is full", done.stdout
    )


@pytest.mark.system
def test_a_terminal_is_refreshed_in_place_and_ctrl_c_leaves_no_trace(redis_url, run):
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-c", MONITOR, redis_url, run.config.run.name],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        env=environment,
        start_new_session=True,
    )
    seen = b""
    deadline = time.monotonic() + 30
    while b"step 6" not in seen and time.monotonic() < deadline:
        if select.select([primary], [], [], 0.2)[0]:
            seen += os.read(primary, 65536)
        if b"step 5" in seen:
            run.redis.hset(run.keys.state, "step", 6)
    process.send_signal(2)
    deadline = time.monotonic() + 20
    # Read on: a terminal that nobody reads holds a few KiB, and whoever writes more waits.
    while select.select([primary], [], [], 0.2)[0] or (
        process.poll() is None and time.monotonic() < deadline
    ):
        if select.select([primary], [], [], 0)[0]:
            seen += os.read(primary, 65536)
    process.kill()
    assert process.wait(1) == 0
    os.close(secondary)
    os.close(primary)
    assert b"step 6 of 40" in seen
    assert b"\x1b[?1049h" in seen  # the alternate screen: scrollback is left alone
    assert b"Traceback" not in seen


def test_a_terminal_that_watches_a_finished_run_keeps_its_last_screen_and_ends(redis_url, run):
    run.redis.hset(run.keys.state, "step", run.config.learner.steps)
    primary, secondary = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MONITOR, redis_url, run.config.run.name],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"},
    )
    os.close(secondary)
    seen = b""
    while select.select([primary], [], [], 30)[0]:
        try:
            seen += os.read(primary, 65536)
        except OSError:  # the other end is closed
            break
    os.close(primary)
    assert process.wait(20) == 0
    left = seen.rpartition(b"\x1b[?1049l")[2]
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
        watching = threading.Thread(
            target=monitor, args=(server.url, "demo"), kwargs={"file": file}, daemon=True
        )
        watching.start()
        time.sleep(0.5)
    time.sleep(0.3)
    assert watching.is_alive(), "a run that is up may find its Redis again"
    file.end("stopped", "interrupted")
    watching.join(20)
    assert not watching.is_alive()
    assert "demo was stopped; resume with: hora run X --resume" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("redis://127.0.0.1:1", "no Redis answers"),
        ("{url}", "knows no run"),
        ("{wrong}", "refuses the password"),
        ("{older}", "another version of hora"),
    ],
)
def test_bad_input_is_a_sentence(redis_url, url, sentence, tmp_path):
    (tmp_path / "wrong").write_text("wrong")
    name = "older" if url == "{older}" else "missing"
    connect(redis_url).set(Keys("older").config, '{"model": {"path": "m"}, "colour": 3}')
    wrong = f"{redis_url.partition('?')[0]}?password_file={tmp_path / 'wrong'}"
    with pytest.raises(RunError, match=sentence) as caught:
        monitor(url.format(url=redis_url, wrong=wrong, older=redis_url), name, once=True)
    assert "\n" not in str(caught.value)


def test_a_replica_that_leaves_is_gone_and_one_that_is_killed_is_silent(redis_url: str) -> None:
    async def beat_and_leave() -> None:
        client = connect_async(redis_url)
        try:
            beats = [
                asyncio.create_task(keep_beating(client, "leaves", f"generator/{name}", dict))
                for name in ("stays", "leaves")
            ]
            while await client.hlen(Keys("leaves").parts) < 2:
                await asyncio.sleep(0.01)
            await stop_beating(beats[1])
            assert [text_of(name) for name in await client.hkeys(Keys("leaves").parts)] == ["generator/stays"]
        finally:
            await client.aclose()

    asyncio.run(beat_and_leave())


@pytest.mark.parametrize(("width", "height"), [(80, 40), (120, 30)])
def test_the_screen_tells_everything_within_its_size(run, width, height):
    lines = drawn(read_run(run.redis, run.config.run.name), width)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= height
    for word in ("step 5 of 40", "v5", "0/24", "a1b2c3", "d4e5f6", "waits for weights", "Phase B"):
        assert word in "\n".join(lines), word
