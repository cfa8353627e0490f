"""What a process may use of its machine: its control group's limits count, not the machine's numbers."""

import math
import os
from pathlib import Path

import pytest

from hora_rl.common import processes

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


def test_a_quota_and_a_limit_of_memory_count_beside_affinity_and_all_memory(
    group: Path, tmp_path: Path
) -> None:
    (group / "cpu.max").write_text("max 100000\n")
    assert processes.processors() == len(os.sched_getaffinity(0))
    assert processes.memory_left() == math.inf
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert processes.processors() == 1
    for file, text in (("memory.max", "1000"), ("memory.current", "700"), ("memory.stat", STAT)):
        (group / file).write_text(text)
    assert processes.memory_left() == 1000 - 700 + 300, "what is only cached is free"
