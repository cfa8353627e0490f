"""The first seconds of `hora run`, in which generators and learner load at the same time: what is stopped or
fails then ends in one line, with nothing left."""

import json
from collections.abc import Callable

import pytest

from hora_rl.deploy.machine.signals import GRACE_S
from tests.system.conftest import LiveRun

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


def test_a_stop_while_generators_and_learner_load_ends_both(live_run: Callable[..., LiveRun]) -> None:
    run = live_run(2)
    run.wait_for(lambda: bool(run.part("controller") and run.part("generator")), "start of both")
    assert "up in" not in run.said(), "the replicas are still loading"
    run.interrupt()
    said = run.fail(GRACE_S, status=130)
    run.assert_nothing_left(30.0)
    assert "Traceback" not in said
    assert "resume with: hora run" in said
    assert json.loads((run.run / "run.json").read_text())["state"] == "stopped"


@pytest.mark.slow
def test_a_generator_that_cannot_load_ends_the_run_with_its_reason(
    live_run: Callable[..., LiveRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM refuses the variable in the process of a replica, as it refuses a card that is too small."""
    monkeypatch.setenv("VLLM_FLOAT32_MATMUL_PRECISION", "neither")
    run = live_run(2)
    said = run.fail(240.0)
    run.assert_nothing_left(30.0)
    record = json.loads((run.run / "run.json").read_text())
    assert record["state"] == "failed"
    assert record["reason"].startswith("a replica of generator does not start: ")
    assert "Traceback" not in said
    assert record["reason"].split(": ")[1] in said
