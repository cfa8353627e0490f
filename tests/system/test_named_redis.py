"""`hora run` with `queue.url` uses that Redis, starts none, and refuses an older run of its name there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.keys import Keys
from common.redis import connect
from deploy.launch.redis_server import RedisServer

HORA = str(Path(sys.executable).with_name("hora"))
SETTINGS = {
    "run.name": "named",
    "rollout.prompts_per_batch": 8,
    "rollout.group_size": 6,
    "rollout.pre_rollouts": 2,
    "rollout.shards": 2,
    "learner.steps": 2,
    "evaluation.path": "null",
    "telemetry.http_port": 0,
}

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def hora(command: str, folder: Path, url: str, *more: str) -> subprocess.CompletedProcess[str]:
    settings = {**SETTINGS, "run.folder": folder, "queue.url": url}
    ask = [HORA, command, "tiny", *more, *(p for k, v in settings.items() for p in ("-s", f"{k}={v}"))]
    return subprocess.run(ask, capture_output=True, text=True, timeout=400)


def test_a_run_uses_the_redis_that_is_named_and_no_other(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "mine") as server:
        client, keys = connect(server.url), Keys("named")
        done = hora("run", tmp_path / "runs", server.url)
        assert done.returncode == 0, done.stdout + done.stderr
        run = tmp_path / "runs" / "named"
        assert json.loads((run / "run.json").read_text())["state"] == "finished"
        assert client.xlen(keys.steps) == 2, "the learner reported here"
        assert not (run / "redis").exists(), "a Redis of the run's own"

        elsewhere = tmp_path / "elsewhere"
        again = hora("run", elsewhere, server.url)
        assert again.returncode == 1
        assert "holds a run 'named' already" in again.stderr
        assert len(again.stderr.strip().splitlines()) == 1
        assert not elsewhere.exists()
        assert client.xlen(keys.steps) == 2
        assert hora("doctor", elsewhere, server.url).returncode == 0
    for command in ("doctor", "check", "run"):
        away = hora(command, elsewhere, server.url)
        assert away.returncode == 1
        assert "no Redis answers at" in away.stdout + away.stderr
