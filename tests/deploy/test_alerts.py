"""Alerts reach a real server and a real command, each cause once, and never hold a run up."""

import http.server
import io
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hora_rl.common.errors import RunError
from hora_rl.deploy.checks import configuration
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.machine.record import RunFile, start_ticks
from hora_rl.deploy.monitor import alerts as module
from hora_rl.deploy.monitor import terminal as progress_of
from hora_rl.deploy.monitor.alerts import Alerts
from hora_rl.deploy.monitor.run_state import Kind, Warning
from tests.support.checks import one
from tests.support.ports import until
from tests.support.synthetic_run import SyntheticRun, config_of


class Server(http.server.ThreadingHTTPServer):
    """Keeps what is posted; answers with `status`, after `delay_s`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.status, self.delay_s = 200, 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/secret-path"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.server.delay_s)
        self.server.bodies.append(json.loads(body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(at: Console) -> str:
    return str(at.file.getvalue())  # type: ignore[attr-defined]


def test_each_cause_of_a_warning_reaches_the_server_once(
    server: Server, run: SyntheticRun, tmp_path: Path
) -> None:
    state = run.read()
    alerts = Alerts("watched", server.url, tmp_path, console())
    tell = progress_of.Teller(console(), alerts)
    idle = (Warning(Kind.GENERATORS_IDLE, "generators idle"),)
    for second in range(5):
        tell(replace(state, time=1000.0 + second, step=second, warnings=idle))
    alerts.ended("failed", "no reward today")
    first, last = server.bodies
    assert (first["run"], first["kind"], first["text"]) == ("watched", "generators_idle", "generators idle")
    assert (last["kind"], last["text"], last["folder"]) == ("run_failed", "no reward today", str(tmp_path))


def test_the_end_of_a_run_is_told_however_it_ends(server: Server, tmp_path: Path) -> None:
    def recorded(name: str, ends: BaseException | None) -> None:
        alerts = Alerts("watched", server.url, tmp_path / name, console())
        with RunFile(tmp_path / name, alerts.ended).recorded(name, "again", console()):
            if ends is not None:
                raise ends

    recorded("well", None)
    with pytest.raises(SystemExit):
        recorded("interrupted", KeyboardInterrupt())
    with pytest.raises(RunError):
        recorded("badly", RunError("the disk is full"))
    assert [body["kind"] for body in server.bodies] == ["run_finished", "run_stopped", "run_failed"]
    assert server.bodies[-1]["text"] == "the disk is full"


def test_a_command_gets_the_alert_as_json_and_in_its_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = tmp_path / "notify of mine.sh"
    script.write_text(f'#!/bin/sh\ncat > "{out}"; echo "$HORA_ALERT_KIND $1" >> "{out}"\n')
    script.chmod(0o755)
    alerts = Alerts("watched", f"'{script}' channel", tmp_path, console())
    alerts.notify("no_hit", "no success; $(touch x) 'quoted'", 7)
    alerts.ended("finished", "")
    body, _, rest = out.read_text().partition("}")
    assert rest == "run_finished channel\n"
    assert json.loads(body + "}")["kind"] == "run_finished"


def test_a_hook_that_fails_is_told_once_until_it_works_again(server: Server, tmp_path: Path) -> None:
    at = console()
    alerts, server.status = Alerts("watched", server.url, tmp_path, at), 500
    for number in range(3):
        alerts.notify("no_hit", str(number))
    alerts.ended("finished", "")
    assert len(server.bodies) == 4
    assert said(at).count("telemetry.on_alert failed, the run continues") == 1
    assert "500" in said(at)
    assert "secret-path" not in said(at)


def test_a_hook_that_hangs_does_not_hold_the_run_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.3)
    at, server.delay_s = console(), 2.0
    alerts, began = Alerts("watched", server.url, tmp_path, at), time.monotonic()
    for number in range(3 * module.MOST):
        alerts.notify("no_hit", str(number))
    assert time.monotonic() - began < 1.0
    alerts.ended("finished", "")
    assert time.monotonic() - began < 1.5
    until(lambda: "timed out" in said(at))


def test_a_command_that_hangs_ends_with_what_it_started_and_stays_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.5)
    at, pid = console(), tmp_path / "pid"
    alerts = Alerts("watched", f"sh -c 'sleep 60 & echo $! > {pid}; wait' --key hush", tmp_path, at)
    alerts.notify("no_hit", "no success")
    until(lambda: "it takes over 0.5 s" in said(at))
    assert "hush" not in said(at)
    until(lambda: start_ticks(int(pid.read_text())) is None)


def test_a_command_that_is_not_there_is_refused_before_the_run(tmp_path: Path) -> None:
    config = config_of("watched", telemetry={"on_alert": "no-such-program --now"})
    found = one(configuration.packages, Target(config))["telemetry.on_alert"]
    assert (found.level, "no-such-program" in found.line) == ("fail", True)
    assert "--now" not in found.line, "arguments may be a secret"
    with pytest.raises(ValueError, match="http"):
        config_of("watched", telemetry={"on_alert": "ftp://somewhere"})
