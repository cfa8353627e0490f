"""A run that has ended is looked at as it was, from its folder alone, in which nothing changes."""

import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect
from hora_rl.deploy.monitor.run_state import Kind
from hora_rl.deploy.monitor.terminal import monitor
from hora_rl.deploy.monitor.web import create_app
from hora_rl.deploy.runs.ended_run import source_of
from tests.support.ports import until
from tests.support.synthetic_run import write_ended


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
    with pytest.raises(RunError, match="nothing to watch, the run was stopped"), source_of(str(run)):
        pass
