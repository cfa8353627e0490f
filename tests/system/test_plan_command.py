"""`hora plan CONFIG` on the real stack counts training prompts, and plans from the counts."""

import json
from pathlib import Path

import pytest

from tests.support.jsonl import lines
from tests.system.conftest import hora

PROMPTS, SAMPLES = 100, 16

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def test_counts_of_this_machine_become_a_plan(tmp_path: Path) -> None:
    out = tmp_path / "counts.jsonl"
    counted = ("--prompts", PROMPTS, "--samples", SAMPLES, "--out", out, "-s", "telemetry.http_port=0")
    planned = hora("plan", "tiny", *counted, "--group-size", "16", "--rounds", "1,4", "--json")
    counts = lines(out)
    assert len({r["id"] for r in counts}) == PROMPTS
    assert {r["trials"] for r in counts} == {SAMPLES}
    assert 0 < sum(r["successes"] for r in counts) < PROMPTS * SAMPLES

    rows = json.loads(planned.stdout)["rows"]
    uniform = next(r for r in rows if r["rule"] == "uniform")
    hits = sum(r["successes"] > 0 for r in counts) / len(counts)
    assert uniform["hits_low"] <= hits <= uniform["hits_high"]
    assert max(r["hits"] for r in rows) > uniform["hits"]
