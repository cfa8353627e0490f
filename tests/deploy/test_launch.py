"""Which deployments an application has, and waiting for it: replicas are counted, one that does not start is
one line. Of a cluster's parts those that find no place are told with the numbers. What is served must be the
run to be trained."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve import Application
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, DeploymentStatus
from rich.console import Console

from hora_rl.common.config import Config
from hora_rl.common.console import working
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.state import changed, read_state
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.common.load import load
from hora_rl.deploy.app import build_run, build_sampler
from hora_rl.deploy.launch import cluster, stack
from hora_rl.deploy.launch.cluster import Share, check_agreement, reports_unplaced, unplaced
from hora_rl.deploy.launch.evaluation import TrainingRun
from hora_rl.deploy.launch.local import _loads_alone
from tests.support.ports import until

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
    return stack.Application("", "", Console(quiet=True), ExitStack(), begin, 0.0)


def test_each_replica_that_is_up_is_a_part_of_the_bar(looks: list[Any]) -> None:
    deploying = [seen(ApplicationStatus.DEPLOYING, running) for running in (0, 2, 1, 3)]
    looks += [*deploying, seen(ApplicationStatus.RUNNING, 3)]
    begun: list[str] = []
    assert application(begun.append).wait()
    assert begun == ["replicas"] * 4


def test_the_start_says_what_an_engine_does_and_counts_it_once(
    looks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks += [*(seen(ApplicationStatus.DEPLOYING) for _ in range(5)), seen(ApplicationStatus.RUNNING, 1)]
    stages = iter([set(), {"importing vLLM"}, {"compiling"}, {"compiling"}, set(), set()])
    with working("starting", 2, Console(quiet=True)) as begin:
        said = list[str]()

        def note(part: str, again: bool = False) -> None:
            begin(part, again)
            said.append(part)

        waiting = application(note)
        waiting._stages = lambda: next(stages)
        assert waiting.wait()
    engine = "replicas, an engine: "
    assert said == ["replicas", f"{engine}importing vLLM", f"{engine}compiling", "replicas"]


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
    for look, status, state in ((deployed, "UPDATING", "STARTING"), (others_up, "HEALTHY", "RUNNING")):
        verifier = {"status": DeploymentStatus(status), "message": "", "replica_states": {state: 1}}
        look.deployments["verifier"] = SimpleNamespace(**verifier)
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


def shares(*, generators: int, up: int, ranks_up: int = 1, cpus: float = 0.5) -> list[Share]:
    return [
        Share("generator", generators, up, {"CPU": cpus, "GPU": 0.0}),
        Share("verifier", 1, 1, {"CPU": 0.25, "GPU": 0.0}),
        Share("coordinator", 1, 1, {"CPU": 0.25, "GPU": 0.0}),
        Share("learner rank", 1, ranks_up, {"CPU": 1.0, "GPU": 0.0}),
    ]


def test_what_a_cluster_cannot_hold_is_told_with_both_numbers_and_no_more() -> None:
    said = unplaced(shares(generators=2, up=1), {"CPU": 2.0})
    assert said.startswith("no place for 1 of 2 generator: 2.5 CPUs are reserved")
    assert "the cluster has 2;" in said
    said = unplaced(shares(generators=2, up=2, ranks_up=0), {"CPU": 2.0})
    assert said.startswith("no place for 1 of 1 learner rank")
    assert unplaced(shares(generators=1, up=0, ranks_up=0), {"CPU": 2.0}) == ""
    assert unplaced(shares(generators=2, up=2, cpus=0.9), {"CPU": 2.0}) == "", "everything runs"
    generators = Share("generator", 2, 1, {"CPU": 0.5, "GPU": 1.0})
    both = [generators, Share("learner rank", 2, 2, {"CPU": 1.0, "GPU": 1.0})]
    assert "4 GPUs are reserved" in unplaced(both, {"CPU": 16.0, "GPU": 3.0})
    assert unplaced(both, {"CPU": 16.0, "GPU": 4.0}) == ""


def training(name: str, url: str) -> TrainingRun:
    return TrainingRun(load("tiny", [f"run.name={name}"]), url, Path(), Console())


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Share]:
    """What a look finds on a cluster of two CPUs."""
    found = shares(generators=1, up=1)
    monkeypatch.setattr(cluster, "EVERY_S", 0.02)
    monkeypatch.setattr(cluster, "_shares", lambda *_: found)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    return found


def test_what_was_said_is_gone_once_all_parts_fit_and_at_the_end(redis_url: str, parts: list[Share]) -> None:
    client = connect(redis_url)
    client.hset(Keys("fits").state, mapping=changed(unplaced="no place for 1 of 2 learner rank"))
    with reports_unplaced(training("fits", redis_url)):
        until(lambda: read_state(client, "fits").unplaced == "")
    parts[:] = shares(generators=2, up=1)
    with reports_unplaced(training("ends", redis_url)):
        until(lambda: read_state(client, "ends").unplaced.startswith("no place for 1 of 2 gen"))
    assert read_state(client, "ends").unplaced == ""


def test_ray_is_asked_what_it_has_only_while_a_part_is_not_up(
    redis_url: str, parts: list[Share], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, looks = list[int](), list[int]()
    monkeypatch.setattr(ray, "cluster_resources", lambda: asked.append(len(looks)) or {"CPU": 2.0})
    monkeypatch.setattr(cluster, "_shares", lambda *_: looks.append(len(looks)) or parts)
    with reports_unplaced(training("up", redis_url)):
        until(lambda: len(looks) > 3)
        assert asked == [0]
        parts[:] = shares(generators=2, up=1)
        until(lambda: len(asked) > 2)


def written(url: str, name: str) -> tuple[Any, Config]:
    """Redis and configuration of a run whose coordinator has written its own."""
    client, config = connect(url), load("tiny", [f"run.name={name}"])
    client.set(Keys(name).config, config.model_dump_json())
    return client, config


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SETTLE_S", 0.0)
    monkeypatch.setattr(cluster, "WAIT_S", 0.0)


def test_a_coordinator_must_be_at_work_and_other_settings_are_named_with_the_key(redis_url: str) -> None:
    client, config = written(redis_url, "left")
    with pytest.raises(RunError, match="no coordinator of run 'left' writes to this Redis"):
        check_agreement(config, redis_url)
    heartbeat_now(client, "left", "coordinator/a", {"state": "working"})
    check_agreement(config, redis_url)
    with pytest.raises(ConfigError, match=r"run\.seed"):
        check_agreement(load("tiny", ["run.name=left", "run.seed=7"]), redis_url)


def test_a_learner_that_starts_has_a_coordinator_that_gave_up_start_again(redis_url: str) -> None:
    client, config = written(redis_url, "again")
    state = Keys("again").state
    client.hset(state, mapping=changed(error="the reward's service was away"))
    with pytest.raises(RunError, match="the coordinator stopped: the reward's service was away"):
        check_agreement(config, redis_url)
    assert client.hexists(state, "error"), "nobody is there to start again: its reason stays"
    heartbeat_now(client, "again", "coordinator/a", {"state": "working"})
    check_agreement(config, redis_url)
    assert not client.hexists(state, "error")


@pytest.mark.parametrize("preset", ["tiny", "tiny-guess"])
def test_no_deployment_logs_its_calls(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run of weeks there are many millions."""
    monkeypatch.setenv("HORA_REDIS_URL", "redis://127.0.0.1:1")
    config = load(preset)
    built = (build_run(config, drain=False), build_sampler(config))
    found = {d.name: d for root in built for d in deployments(root)}
    assert {"ingress", "coordinator", "generator", "verifier", "sampler"} <= set(found)
    assert not [d.name for d in found.values() if d.logging_config["enable_access_log"]]


def deployments(application: Application) -> Iterator[serve.Deployment]:
    bound = application._bound_deployment
    yield bound
    for argument in (*bound.init_args, *bound.init_kwargs.values()):
        if isinstance(argument, Application):
            yield from deployments(argument)


FIXED = "generator.kv_cache_gib=4"
HALVES = ("generator.gpus=0.5", "learner.gpus=0.5")


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ((), False),
        (HALVES, True),
        ((*HALVES, FIXED), False),
        ((*HALVES, FIXED, "generator.sleep=step", "rollout.max_staleness=0"), True),
    ],
)
def test_the_learner_starts_beside_an_engine_that_does_not_measure_its_card(
    settings: tuple[str, ...], waits: bool
) -> None:
    config = load("tiny", settings)
    assert _loads_alone(config.generator, config.learner) is waits
