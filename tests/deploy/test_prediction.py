"""What a step was to take against what it took, of a run of the demo's model that was recorded on CPU."""

import json
import shutil
from pathlib import Path

import pytest

from hora_rl.common.load import dump_yaml, load
from hora_rl.deploy.checks.step_costs import WANTED_MFU
from hora_rl.deploy.runs.prediction import predict
from hora_rl.evaluation.report.predicted import PredictedRow
from hora_rl.evaluation.report.runs_report import write_report

RECORDED = Path(__file__).parent / "recorded_run"
H100 = 989e12


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of the recorded run: the preset `tiny`, five steps."""
    folder = tmp_path / "recorded"
    shutil.copytree(RECORDED, folder)
    (folder / "config.yaml").write_text(dump_yaml(load("tiny", ["learner.steps=5"])))
    return folder


def rows(folder: Path) -> dict[str, PredictedRow]:
    return {row.title: row for row in predict(folder).rows}


def test_bytes_tokens_and_flops_are_predicted_without_a_known_device(run: Path) -> None:
    found = rows(run)
    update = found["A weight update"]
    assert update.predicted == update.measured == 3_288_576, "822,144 parameters in float32"
    assert found["Rollouts of a step"].ratio == 1.0
    tokens = found["Response tokens of a step"]
    assert tokens.predicted == 640 * 64
    flops = found["Model FLOPs of the learner"]
    assert tokens.ratio is not None
    assert flops.ratio is not None
    assert 0 < flops.ratio < tokens.ratio < 1, "answers are shorter than half the limit; some have no signal"


def test_seconds_are_measured_and_not_predicted_where_no_peak_is_known(run: Path) -> None:
    seconds = [row for row in predict(run).rows if row.unit == "s"]
    assert [row.title for row in seconds if row.predicted is not None] == []
    assert all(row.why for row in seconds)
    measured = {row.title: row.measured for row in seconds}
    steps = [json.loads(line) for line in (RECORDED / "steps.jsonl").read_text().splitlines()]
    later = sorted(s["time/step"] for s in steps[1:])
    assert measured["Whole step"] == pytest.approx((later[1] + later[2]) / 2), "the first is left out"
    assert "Device of the learner: cpu, whose peak is not known" in predict(run).says


def test_seconds_are_predicted_for_a_known_card_in_16_bits(run: Path) -> None:
    (run / "learner.json").write_text('{"device": "NVIDIA H100 80GB HBM3", "ranks": 2}')
    settings = ["learner.steps=5", "model.dtype=bfloat16", "learner.workers=2"]
    (run / "config.yaml").write_text(dump_yaml(load("tiny", settings)))
    found = rows(run)
    flops, compute = found["Model FLOPs of the learner"], found["Forward, backward, optimizer"]
    assert flops.predicted is not None
    assert compute.predicted == pytest.approx(1e12 * flops.predicted / (WANTED_MFU * H100 * 2))
    gather, update = found["Weights to host memory"], found["A weight update"]
    assert update.predicted is not None
    assert gather.predicted == pytest.approx(update.predicted / 20e9)
    assert update.ratio == 2.0, "what was recorded had 4 bytes each"
    assert "peak 989 TFLOP/s" in predict(run).says


def test_a_run_whose_model_is_gone_says_so(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    path = load("tiny", []).model.path
    (run / "config.yaml").write_text(text.replace(path, "/nowhere/model"))
    found = predict(run)
    assert found.rows == ()
    assert "/nowhere/model" in found.says


@pytest.mark.system
def test_the_report_shows_the_table(run: Path, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "out", predict).read_text()
    assert "Predicted and measured: recorded" in text
    assert "<td>A weight update</td><td>bytes</td><td>3,288,576</td><td>3,288,576</td><td>1</td>" in text
    assert "<td>no figure of this device</td>" in text
