"""Waiting for a deployed application: replicas are counted, and one that does not start is a single line."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, DeploymentStatus
from rich.console import Console

from hora_rl.common.errors import RunError
from hora_rl.common.load import load
from hora_rl.deploy.launch import stack

TRACE = """The deployment failed to start 3 times in a row. Error:
ray::ServeReplica.initialize_and_get_metadata() (pid=1)
  File "vllm_engine.py", line 3, in begin
RuntimeError: hora_rl.common.errors.RunError: the model has no weights

"""


def seen(status: ApplicationStatus, running: int = 0, message: str = "") -> SimpleNamespace:
    failed = status is ApplicationStatus.DEPLOY_FAILED
    generator = SimpleNamespace(
        status=DeploymentStatus.DEPLOY_FAILED if failed else DeploymentStatus.UPDATING,
        message=message,
        replica_states={"RUNNING": running, "STARTING": 3 - running},
    )
    return SimpleNamespace(status=status, message="", deployments={"generator": generator})


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each look at Serve finds, in order; an exception is raised."""
    found: list[Any] = []

    def status() -> SimpleNamespace:
        now = found.pop(0)
        if isinstance(now, Exception):
            raise now
        return SimpleNamespace(applications={"hora": now})

    monkeypatch.setattr(serve, "status", status)
    monkeypatch.setattr(stack, "LOOK_S", 0.01)
    return found


def application(begin: Callable[[str], None] = lambda _: None) -> stack.Application:
    return stack.Application(load("tiny"), "", True, Console(quiet=True), ExitStack(), begin, 0.0)


def test_each_replica_that_is_up_is_a_part_of_the_bar(looks: list[Any]) -> None:
    deploying = [seen(ApplicationStatus.DEPLOYING, running) for running in (0, 2, 1, 3)]
    looks += [*deploying, seen(ApplicationStatus.RUNNING, 3)]
    begun: list[str] = []
    assert application(begun.append).wait()
    assert begun == ["replicas"] * 4


def test_a_replica_that_does_not_start_is_named_with_its_reason(looks: list[Any]) -> None:
    looks += [seen(ApplicationStatus.DEPLOYING), seen(ApplicationStatus.DEPLOY_FAILED, 0, TRACE)]
    with pytest.raises(RunError) as refused:
        application().wait()
    assert str(refused.value).startswith("a replica of generator does not start: the model has no weights (")


def test_the_end_of_serve_is_no_error_once_the_command_stops(looks: list[Any]) -> None:
    stopped = threading.Event()
    looks += [RayServeException("there is no Serve")]
    with pytest.raises(RunError, match="Serve ended while application 'hora' started"):
        application().wait(stopped)
    stopped.set()
    looks += [RayServeException("there is no Serve")]
    assert not application().wait(stopped)


def test_all_but_the_generators_are_waited_for_and_then_those(looks: list[Any]) -> None:
    begun: list[str] = []
    deployed, others_up = seen(ApplicationStatus.DEPLOYING), seen(ApplicationStatus.DEPLOYING, 1)
    deployed.deployments["verifier"] = SimpleNamespace(
        status=DeploymentStatus.UPDATING, message="", replica_states={"STARTING": 1}
    )
    others_up.deployments["verifier"] = SimpleNamespace(
        status=DeploymentStatus.HEALTHY, message="", replica_states={"RUNNING": 1}
    )
    empty = SimpleNamespace(status=ApplicationStatus.DEPLOYING, message="", deployments={})
    looks += [empty, deployed, others_up]
    waiting = application(begun.append)
    waiting.wait_for_all_but("generator")
    assert not looks
    assert not waiting.is_up
    assert begun == ["replicas"] * 3
    looks += [seen(ApplicationStatus.RUNNING, 3)]
    assert waiting.wait()
    assert waiting.is_up
    assert begun == ["replicas"] * 4, "each replica is counted once"
