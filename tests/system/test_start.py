"""The first seconds of `hora run`, in which generators and learner load at the same time: what is stopped or
fails then ends in one line, with nothing left."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from deploy.launch.signals import GRACE_S

HORA = str(Path(sys.executable).with_name("hora"))
SMALL = {
    "rollout.prompts_per_batch": 8,
    "rollout.group_size": 6,
    "rollout.pre_rollouts": 2,
    "rollout.shards": 2,
    "learner.steps": 2,
    "evaluation.path": "null",
    "telemetry.http_port": 0,
}
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


class Starting:
    """A `hora run` in `folder` with more variables in its environment, and every process that it starts."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.run, self._log = folder / "starting", folder / "log"
        settings = {**SMALL, "run.folder": folder, "run.name": "starting"}
        command = [HORA, "run", "tiny", *(w for k, v in settings.items() for w in ("-s", f"{k}={v}"))]
        with self._log.open("wb") as log:
            self.process = psutil.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **env, "COLUMNS": "200"}
            )
        self.family: set[psutil.Process] = set()

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, done: Callable[[set[str]], bool], limit_s: float = 300.0) -> None:
        """Until `done` with the command lines of all processes, or the command has ended."""
        deadline = time.monotonic() + limit_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.said
            found = set(self.process.children(recursive=True))
            self.family |= found
            if done({line for line in map(_line, found) if line}):
                return
            time.sleep(0.05)

    def ended(self, limit_s: float) -> int:
        """The exit status; nothing that was started may be left."""
        self.until(lambda _: False, limit_s)
        _, alive = psutil.wait_procs(self.family, timeout=30)
        assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE], self.said
        return int(self.process.wait())


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def load_together(lines: set[str]) -> bool:
    """Whether the engine is loading and Ray Train has begun."""
    return any("ray::TrainController" in x for x in lines) and any("generator" in x for x in lines)


def test_a_stop_while_generators_and_learner_load_ends_both(tmp_path: Path) -> None:
    starting = Starting(tmp_path)
    try:
        starting.until(load_together)
        assert "up in" not in starting.said, "the replicas are still loading"
        starting.process.send_signal(signal.SIGINT)
        assert starting.ended(GRACE_S) == 130, starting.said
    finally:
        if starting.process.poll() is None:
            starting.process.kill()
    assert "Traceback" not in starting.said
    assert "resume with: hora run" in starting.said
    assert json.loads((starting.run / "run.json").read_text())["state"] == "stopped"


@pytest.mark.slow
def test_a_generator_that_cannot_load_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    """vLLM refuses the variable in the process of a replica, as it refuses a card that is too small."""
    starting = Starting(tmp_path, VLLM_FLOAT32_MATMUL_PRECISION="neither")
    try:
        assert starting.ended(240) == 1, starting.said
    finally:
        if starting.process.poll() is None:
            starting.process.kill()
    record = json.loads((starting.run / "run.json").read_text())
    assert record["state"] == "failed"
    assert record["reason"].startswith("a replica of generator does not start: ")
    assert "Traceback" not in starting.said
    assert record["reason"].split(": ")[1] in starting.said
