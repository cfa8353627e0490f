import io
import time

from rich.console import Console

from deploy.monitor import progress
from deploy.monitor.progress import working


def test_a_terminal_sees_what_is_being_done_and_how_far_it_is_and_nothing_is_left_of_it():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with working("examining", 2, console) as begin:
        begin("memory")
        begin("disk")
    assert "examining: disk" in screen.getvalue()
    assert "1/2" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[2K"), "the line is wiped at the end"


def test_a_pipe_is_told_what_takes_long_and_for_how_long(monkeypatch):
    monkeypatch.setattr(progress, "LONG_S", 0.05)
    pipe = io.StringIO()
    with working("starting", 2, Console(file=pipe)) as begin:
        begin("Redis")
        begin("replicas")
        time.sleep(0.3)
    said = pipe.getvalue().splitlines()
    assert said[0].startswith("starting: replicas for ")
    assert len(said) >= 2
    assert "Redis" not in pipe.getvalue()


def test_a_pipe_gets_nothing():
    pipe = io.StringIO()
    with working("examining", 2, Console(file=pipe)) as begin:
        begin("memory")
    assert pipe.getvalue().strip() == ""
