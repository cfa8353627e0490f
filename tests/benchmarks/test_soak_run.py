"""A run is sampled from outside: each process belongs to a part, and what stays the same is no row."""

import subprocess
import sys
from pathlib import Path

import psutil

from benchmarks.soak_run import _part, of_disk, of_processes, table_of

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_process_belongs_to_its_part_and_a_worker_to_its_parents() -> None:
    assert _part("ray::ServeReplica:hora:verifier", "Ray's other processes") == "verifier"
    assert _part("python -c from multiprocessing.spawn import spawn_main", "verifier") == "verifier's workers"
    assert _part("VLLM::EngineCore", "generator") == "engine"
    assert _part("raylet/raylet --store", "hora run") == "Ray's other processes"
    assert _part("ray::IDLE", "Ray's other processes") == "Ray's other processes"


def test_a_run_and_what_it_started_are_summed() -> None:
    with subprocess.Popen(SLEEP) as child:
        found = of_processes(psutil.Process())
        child.kill()
    assert found["hora run: processes"] == 1
    assert found["hora run: resident memory, MiB"] > 10
    assert found["Ray's other processes: processes"] >= 1


def test_files_are_counted_where_they_lie(tmp_path: Path) -> None:
    run, session = tmp_path / "run", tmp_path / "session"
    for folder in (run / "redis", run / "tensorboard", session):
        folder.mkdir(parents=True)
    (run / "logs").symlink_to(session)
    for file, size in ((run / "redis/aof", 2**20), (session / "raylet.out", 2**21), (run / "steps", 2**22)):
        file.write_bytes(bytes(size))
    found = {name: mib for name, mib in of_disk(run).items() if mib}
    assert found == {"disk: redis, MiB": 1.0, "disk: logs, MiB": 2.0, "disk: the rest, MiB": 4.0}


def test_what_grows_is_told_per_step_and_per_hour() -> None:
    rows = [{"step": float(i), "leak": 2.0 * i, "same": 3.0} for i in range(200)]
    hours = [{**row, "step": row["step"] * 10} for row in rows]
    cells = [list(column.cells) for column in table_of(rows, hours).columns]
    assert cells[0] == ["leak"]
    assert cells[3] == ["+2000.0 ± 0.0"]
    assert cells[4] == ["+200.0 ± 0.0"]
