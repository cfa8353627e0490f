"""A run that has ended is looked at as it was, from its folder alone, in which nothing changes."""

import os
import threading
import time
from pathlib import Path

import httpx
import pytest
import uvicorn

from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect
from hora_rl.deploy.machine.record import RunFile, State, write_config
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.monitor.run_state import Kind
from hora_rl.deploy.monitor.terminal import monitor
from hora_rl.deploy.monitor.web import create_app
from hora_rl.deploy.runs.ended_run import source_of
from tests.support.synthetic_run import SyntheticRun, config_of, play


def ended(folder: Path, state: State, steps: int, reason: str = "") -> Path:
    """The folder of a run of three steps that ended after `steps`, its Redis with it."""
    run = folder / "over"
    config = config_of("over", learner={"steps": 3})
    with RedisServer(run / "redis") as server:
        play(SyntheticRun(server.url, config), steps)
    write_config(run, config)
    RunFile(run).start("over", os.getpid(), resume="hora run over --resume")
    RunFile(run).end(state, reason)
    return run


def contents(run: Path) -> dict[Path, tuple[int, int]]:
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in run.rglob("*")}


def test_a_finished_run_is_shown_as_it_was_and_its_folder_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended(tmp_path, "finished", 3)
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
    run = ended(tmp_path, "failed", 2, "the learner stopped: no memory")
    with source_of(str(run)) as source:
        app = create_app(source.url, source.run, read=source.read)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            deadline = time.monotonic() + 10
            while (answer := client.get("/status")).status_code != 200:
                assert time.monotonic() < deadline, answer.text
            status, history = answer.json(), client.get("/history").json()
        server.should_exit = server.force_exit = True
        thread.join(10)
    assert (status["status"], status["step"]) == ("stopped", 2)
    assert [w["kind"] for w in status["warnings"]] == [Kind.STOPPED]
    assert "no memory" in status["warnings"][0]["text"]
    assert history["steps"]["step"] == [0, 1]


def test_a_folder_that_kept_no_redis_is_one_line(tmp_path: Path) -> None:
    run = ended(tmp_path, "stopped", 1)
    for file in (run / "redis").iterdir():
        file.unlink()
    with pytest.raises(RunError, match="nothing to watch, the run was stopped"), source_of(str(run)):
        pass
