"""What a process may use of its machine: its control group's limits count. What its log says."""

import asyncio
import json
import math
import os
import threading
from pathlib import Path

import pytest
import structlog

from hora_rl.common import logs, processes

STAT = "anon 1\ninactive_file 300\nactive_file 5\n"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control group of this process, in a tree of them."""
    own = Path("/proc/self/cgroup").read_text().splitlines()
    below = next(line for line in own if line.startswith("0::")).removeprefix("0::").lstrip("/")
    folder = tmp_path / below
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(processes, "GROUPS", tmp_path)
    return folder


def test_a_quota_and_a_limit_count_beside_affinity_and_all_memory(group: Path, tmp_path: Path) -> None:
    (group / "cpu.max").write_text("max 100000\n")
    assert processes.processors() == len(os.sched_getaffinity(0))
    assert processes.memory_left() == math.inf
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert processes.processors() == 1
    for file, text in (("memory.max", "1000"), ("memory.current", "700"), ("memory.stat", STAT)):
        (group / file).write_text(text)
    assert processes.memory_left() == 1000 - 700 + 300, "what is only cached is free"


@pytest.fixture(autouse=True)
def _restore():
    yield
    structlog.reset_defaults()


def lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_every_json_line_names_run_and_part_even_from_another_thread(capsys):
    logs.configure("json", run="r1", part="coordinator/a")
    log = structlog.get_logger("x")
    log.info("here")
    thread = threading.Thread(target=lambda: log.info("there"))
    thread.start()
    thread.join()
    for line in lines(capsys):
        assert (line["run"], line["part"], line["level"]) == ("r1", "coordinator/a", "info")
        assert line["timestamp"].endswith("Z")


async def test_shard_and_group_stay_with_the_task_that_bound_them(capsys):
    logs.configure("json", run="r1")
    log = structlog.get_logger("x")

    async def work(shard: str) -> None:
        with logs.bound(shard=shard, group=f"0:{shard}"):
            await asyncio.sleep(0.01)
            log.info("inside")
        log.info("outside")

    await asyncio.gather(work("1"), work("2"))
    seen = lines(capsys)
    assert {(x["shard"], x["group"]) for x in seen if x["event"] == "inside"} == {("1", "0:1"), ("2", "0:2")}
    assert all("shard" not in x for x in seen if x["event"] == "outside")


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_exception_is_told_without_local_variables(capsys, form):
    logs.configure(form, run="r1")
    password = "hunter2"
    try:
        raise ValueError(password[:0])
    except ValueError:
        structlog.get_logger("x").exception("failed", seconds=3)
    said = capsys.readouterr().err
    assert "ValueError" in said
    assert "hunter2" not in said
    assert "\x1b" not in said, "no colours without a terminal"
    assert json.loads(said)["seconds"] if form == "json" else "seconds=3" in said
