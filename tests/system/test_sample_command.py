"""`hora sample` on the real stack counts training prompts; `hora plan` plans from them."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from hora_rl.deploy.cli import app
from tests.support.jsonl import lines
from tests.system.conftest import hora

PROMPTS, SAMPLES = 100, 16

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def test_counts_of_this_machine_become_a_plan(tmp_path: Path) -> None:
    out = tmp_path / "counts.jsonl"
    asked = ("--prompts", PROMPTS, "--samples", SAMPLES, "--out", out)
    done = hora("sample", "tiny", *asked, "-s", "telemetry.http_port=0")
    assert f"hora plan {out}" in done.stdout.replace("\n", "")
    counts = lines(out)
    assert len({r["id"] for r in counts}) == PROMPTS
    assert {r["trials"] for r in counts} == {SAMPLES}
    assert 0 < sum(r["successes"] for r in counts) < PROMPTS * SAMPLES
    assert all(r["tokens"] >= SAMPLES for r in counts)
    assert list(tmp_path.iterdir()) == [out]

    planned = CliRunner().invoke(app, ["plan", str(out), "--group-size", "16", "--rounds", "1,4", "--json"])
    assert planned.exit_code == 0, planned.output
    rows = json.loads(planned.stdout)["rows"]
    uniform = next(r for r in rows if r["rule"] == "uniform")
    counted = sum(r["successes"] > 0 for r in counts) / len(counts)
    assert uniform["hits_low"] <= counted <= uniform["hits_high"]
    assert max(r["hits"] for r in rows) > uniform["hits"]


@pytest.mark.slow
def test_prompts_of_several_data_sources_are_judged_by_their_own_rewards(tmp_path: Path) -> None:
    (tmp_path / "own_rewards.py").write_text("def always(answer):\n    return 1.0\n")
    config = yaml.safe_load(Path("deploy/presets/tiny.yaml").read_text())
    config["model"]["path"] = str(Path(config["model"]["path"]).resolve())
    own = {"weights": {"own_rewards:always": 1.0}, "success": "own_rewards:always"}
    config["data"] = {
        "sources": {
            "given": {"path": "arithmetic:1-2", "limit": 90, "weight": 3, "system": None, "reward": own},
            "asked": {"path": "arithmetic:5-6", "limit": 60, "system": None},
        }
    }
    (tmp_path / "mixed.yaml").write_text(yaml.safe_dump(config, sort_keys=False))  # rows of `given` first
    words = ("mixed.yaml", "--prompts", 100, "--samples", 2, "-s", "telemetry.http_port=0")
    hora("sample", *words, cwd=tmp_path)
    found = lines(tmp_path / "counts.jsonl")
    given, asked = ([r for r in found if (r["id"] < 90) == first] for first in (True, False))
    assert (len(given), len(asked)) == (75, 25)
    assert {r["successes"] for r in given} == {2}
    assert sum(r["successes"] for r in asked) < 50
