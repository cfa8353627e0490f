"""A run shows its end to those who watch it, on a real Redis: it sees them by their connection."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from hora_rl.common.live.redis import connect
from hora_rl.deploy.launch import local
from hora_rl.deploy.monitor.presence import Presence, is_watched
from tests.support.ports import until
from tests.support.synthetic_run import SyntheticRun

HORA = str(Path(sys.executable).with_name("hora"))


def test_a_view_is_present_from_its_first_look_until_it_ends(redis_url: str) -> None:
    client, view = connect(redis_url), Presence(redis_url, "seen")
    assert not is_watched(client, "seen")
    view.update(True)
    assert is_watched(client, "seen")
    assert not is_watched(client, "see"), "of another run"
    view.update(False)
    until(lambda: not is_watched(client, "seen"))  # the server notices the closed connection when it can


def test_a_terminal_that_watches_is_seen(redis_url: str, run: SyntheticRun) -> None:
    command = [HORA, "monitor", "tiny", "-s", f"run.name={run.name}"]
    env = {**os.environ, "HORA_REDIS_URL": redis_url}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    try:
        until(lambda: is_watched(run.redis, run.name))
    finally:
        process.terminate()
        process.wait(20)
    until(lambda: not is_watched(run.redis, run.name))


@pytest.mark.parametrize("watched", [True, False])
def test_a_run_waits_at_its_end_for_those_who_watch_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(local, "time", SimpleNamespace(sleep=slept.append))
    view = Presence(redis_url, "shown")
    view.update(watched)
    local._show_end("shown", redis_url, Console(quiet=True))
    assert slept == [local.LAST_LOOK_S] * watched
