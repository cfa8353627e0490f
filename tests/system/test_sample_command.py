"""`hora sample` on the real stack counts training prompts and resumes its file; `hora plan` plans from it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HORA = str(Path(sys.executable).with_name("hora"))
SAMPLES = 16

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def sample(out: Path, prompts: int) -> list[dict]:
    ask = [HORA, "sample", "tiny", "--prompts", str(prompts), "--samples", str(SAMPLES), "--out", str(out)]
    settings = ["-s", "telemetry.http_port=0", "-s", "generator.replicas=2"]
    done = subprocess.run([*ask, *settings], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"hora plan {out}" in done.stdout.replace("\n", "")
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_counts_of_this_machine_become_a_plan(tmp_path: Path) -> None:
    out = tmp_path / "counts.jsonl"
    first = sample(out, 100)
    assert len({r["id"] for r in first}) == 100
    assert {r["trials"] for r in first} == {SAMPLES}
    assert 0 < sum(r["successes"] for r in first) < 100 * SAMPLES
    assert all(r["tokens"] >= SAMPLES for r in first)
    more = sample(out, 110)
    assert more[:100] == first
    assert len({r["id"] for r in more}) == 110
    assert list(tmp_path.iterdir()) == [out]

    planned = subprocess.run(
        [HORA, "plan", str(out), "--group-size", "16", "--rounds", "1,4", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert planned.returncode == 0, planned.stderr
    rows = json.loads(planned.stdout)["rows"]
    uniform = next(r for r in rows if r["rule"] == "uniform")
    counted = sum(r["successes"] > 0 for r in more) / len(more)
    assert uniform["hits_low"] <= counted <= uniform["hits_high"]
    assert max(r["hits"] for r in rows) > uniform["hits"]
