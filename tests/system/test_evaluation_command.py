"""`hora eval` on the real stack: stopped by SIGTERM, it continues to its end without repeating a sample."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from hora_rl.actors.data.datasets import load_dataset
from hora_rl.common.load import load
from hora_rl.deploy.machine.signals import GRACE_S
from hora_rl.evaluation.benchmarks import find_benchmark
from tests.support.jsonl import samples
from tests.support.ports import until
from tests.system.conftest import HORA, hora, options, runs

SAMPLES, SUMS, CONTESTS = 16, 90, 2
SETTINGS = {"rollout.max_prompt_tokens": 384, "rollout.max_response_tokens": 64, "telemetry.http_port": 0}

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]


def write_rows(path: Path, rows: list) -> str:
    path.write_text("".join(json.dumps({"problem": r.problem, "answer": r.answer}) + "\n" for r in rows))
    return str(path)


def command(folder: Path) -> list[str]:
    like = load("tiny").data
    sums = list(load_dataset(find_benchmark("arithmetic").data(like)).rows[:SUMS])
    contests = sorted(load_dataset(find_benchmark("amc23").data(like)).rows, key=lambda r: len(r.problem))
    of = {"sums": sums, "contests": contests[:CONTESTS]}
    files = [write_rows(folder / f"{name}.jsonl", rows) for name, rows in of.items()]
    where = ["--out", str(folder / "out"), "--samples", str(SAMPLES), "--k", f"1,8,{SAMPLES}"]
    return ["eval", load("tiny").model.path, "--benchmark", ",".join(files), *where, *options(SETTINGS)]


def test_an_interrupted_evaluation_goes_on_to_its_end_without_repeating_a_sample(tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "first.log"
    drawn = out / "sums-step0.samples.jsonl"
    ask, env = command(tmp_path), {**os.environ, "COLUMNS": "200"}
    with log.open("wb") as file:
        first = subprocess.Popen([HORA, *ask], stdout=file, stderr=file, env=env, start_new_session=True)
        try:
            until(lambda: len(samples(drawn)) >= 100, log.read_text, 400, 0.1, first)
            family = psutil.Process(first.pid).children(recursive=True)
        finally:  # whatever failed, it must not outlive the test
            first.send_signal(signal.SIGTERM)
            ended = first.wait(GRACE_S)
    assert ended == 130
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not [p for p in alive if runs(p)]
    assert "the same command continues" in log.read_text()
    assert not list(out.glob("*-step0.json"))
    kept = samples(drawn)
    assert 100 <= len(kept) < SUMS * SAMPLES

    hora(*ask)
    assert samples(drawn)[: len(kept)] == kept
    for name, problems in (("sums", SUMS), ("contests", CONTESTS)):
        found = samples(out / f"{name}-step0.samples.jsonl")
        every = [(p, j) for p in range(problems) for j in range(SAMPLES)]
        assert sorted((s["problem"], s["sample"]) for s in found) == every
        assert {v for s in found for v in s["versions"]} == {0}
        result = json.loads((out / f"{name}-step0.json").read_text())
        correct = [s["rewards"]["accuracy"] for s in sorted(found, key=lambda s: s["problem"])]
        assert sum(result["correct"]) == sum(correct)
        pass_at = {e["k"]: e["value"] for e in result["pass_at_k"]}
        assert pass_at[1] == pytest.approx(sum(correct) / len(correct))
        assert pass_at[1] <= pass_at[8] <= pass_at[SAMPLES]
        assert all((out / f"{name}-step0.{kind}").stat().st_size for kind in ("csv", "md", "png", "svg"))
    assert sum(s["rewards"]["accuracy"] for s in samples(drawn)) > 0
