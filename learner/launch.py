"""The learner under Ray Train: one worker per rank. When one dies, all restart from the newest checkpoint."""

import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import redis
import structlog
import torch
from ray import train as ray_train
from ray.exceptions import OutOfMemoryError, RayActorError, RayError
from ray.train import (
    ControllerError,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    TrainingFailedError,
    WorkerGroupError,
)

from hora_rl.common import logs
from hora_rl.common.config import Config
from hora_rl.common.errors import HoraError, RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, text_of
from hora_rl.common.live.state import read_state
from hora_rl.learner.ranks import gathered
from hora_rl.learner.ray_private import Stop, torch_config, torch_trainer

log = structlog.get_logger(__name__)
RESTARTS = 10
CONTROLLERS = 3
AGAIN_S = 3.0
"""Seconds before another start. If all processes of a node were signalled at once, `hora run` ends meanwhile,
as stopped; a call to Ray would end it with status 1 and no word."""
NODE_MEMORY = re.compile(
    r"Memory on the node \(IP: (?P<ip>[^,]*),.*?\) was (?P<used>[\d.]+)GB used / (?P<limit>[\d.]+)GB limit"
)
KILLED = re.compile(
    r"(?m)^Selected to kill: .*?task name=(?P<name>[^,]*),"
    r".*?pid=(?P<pid>\d+), actual memory used=(?P<held>[\d.]+)GB"
)
# Ray Train takes a minute per attempt to place all ranks, so busy resources have five minutes to free up.
PLACEMENTS = 4


def run(config: Config, redis_url: str, run_dir: str, stop: Stop | None = None) -> None:
    """Train `config` to its end on the Ray cluster of this process. Blocks. Raises RunError with the reason
    when the learner cannot continue, and after `stop`. Ctrl-C calls `stop` too."""
    stop = stop or Stop()
    share, start = gpu_share(config.learner.gpus, ray.cluster_resources()), uuid.uuid4().hex
    try:
        client = connect(redis_url, patient=True)
        stopped = fit(
            lambda: _trainer(config, redis_url, run_dir, share, start, stop),
            lambda: read_state(client, config.run.name).step,
            stop,
        )
    except ControllerError as error:
        raise RunError(not_started(config.learner.workers, error)) from error
    except (TrainingFailedError, RayError) as error:
        raise RunError(reason(error)) from error
    except KeyboardInterrupt:
        stop()
        raise
    if stopped is not None:
        raise RunError(f"the learner stopped: {stopped}")


def fit(make: Callable[[], Any], steps: Callable[[], int], stop: Stop | None = None) -> str | None:
    """Train to the end, or until the ranks return a reason to stop, which is returned.

    Ray Train restarts its workers. Its controller is an actor whose ranks die with it; then another is
    started, from the newest checkpoint. Both limits reset at each new step, so long runs survive any number
    of failures."""
    left, furthest = CONTROLLERS, steps()
    while True:
        try:
            stopped: str | None = make().fit().return_value
            return stopped
        except (RayActorError, OutOfMemoryError) as error:  # errors of workers have another type
            if stop is not None and stop.requested:
                raise RunError("the learner was stopped") from None
            now = steps()
            left = CONTROLLERS if now > furthest else left - 1
            log.error("Ray Train's TrainController died", starts_left=left, error=_lines(error)[:1])
            if not left:
                raise RunError(
                    f"Ray Train's TrainController died {CONTROLLERS} times without a new step; its log is in "
                    "logs of the run's folder"
                ) from error
        except WorkerGroupError as error:
            if (now := steps()) <= furthest:
                raise
            log.error("ranks died, starting others", restarts=RESTARTS, error=_lines(error)[:1])
        furthest = max(furthest, now)
        time.sleep(AGAIN_S)


def gpu_share(gpus: float | None, resources: Mapping[str, float]) -> float:
    """GPUs that a rank reserves in Ray: `gpus`, by default one, and none if Ray has none."""
    if resources.get("GPU", 0) <= 0:
        return 0.0
    return 1.0 if gpus is None else gpus


def backend(resources: Mapping[str, float]) -> str:
    """The process group's backend: NCCL with real GPUs, of which Ray names the type."""
    named = any(name.startswith("accelerator_type:") for name in resources)
    return "nccl" if torch.cuda.is_available() or (named and resources.get("GPU", 0) > 0) else "gloo"


def _trainer(config: Config, redis_url: str, run_dir: str, share: float, start: str, stop: Stop) -> Any:
    return torch_trainer(
        stop,
        _worker,
        train_loop_config={
            "config": config.model_dump(mode="json"),
            "redis_url": redis_url,
            "run_dir": run_dir,
            "start": start,
        },
        scaling_config=ScalingConfig(
            num_workers=config.learner.workers,
            use_gpu=share > 0,
            resources_per_worker={"CPU": 1, **({"GPU": share} if share else {})},
        ),
        run_config=RunConfig(
            name=config.run.name,
            storage_path=str(Path(run_dir) / "ray-train"),
            failure_config=FailureConfig(max_failures=RESTARTS, controller_failure_limit=PLACEMENTS),
        ),
        torch_config=torch_config(backend(ray.cluster_resources())),
    )


def _worker(arguments: dict[str, Any]) -> str | None:
    """Run one rank. Returns the reason to stop if another attempt would fail the same way."""
    from hora_rl.learner.ranks import set_device
    from hora_rl.learner.train import train

    config, redis_url = Config.model_validate(arguments["config"]), arguments["redis_url"]
    context = ray_train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    logs.configure(config.telemetry.logs, run=config.run.name, part=f"learner/{rank}")
    set_device(config.learner, config.run.seed, context.get_local_rank())
    # DeepSpeed reads these; Ray Train has created the process group already.
    os.environ.setdefault("LOCAL_RANK", str(context.get_local_rank()))
    stop = StopReason(redis_url, config.run.name, arguments["start"])
    if (reason := stop.agree()) is not None:
        return reason
    try:
        train(config, redis_url, Path(arguments["run_dir"]), rank, world)
    except HoraError as error:
        # The error ends the other ranks, which may be waiting in a collective. Ray Train then restarts all
        # ranks. Another attempt would fail the same way, so the new ranks read this reason and return, and
        # the launcher raises.
        stop.write(str(error))
        raise
    return None


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why the start with id `start` of `run` must end. Reasons of earlier starts are ignored.

    A value in Redis, because all ranks see the same one: NFS may show another machine an old folder for up to
    a minute. Otherwise a rank could block in a collective after the others returned."""

    url: str
    run: str
    start: str

    def write(self, reason: str) -> None:
        """Store `reason`, unless one is stored. Without Redis it is lost, but `agree` then finds Redis
        down."""
        with suppress(HoraError, redis.exceptions.RedisError):
            connect(self.url).hsetnx(Keys(self.run).stopped, self.start, reason)

    def agree(self) -> str | None:
        """The reason read by any rank, on every rank; None to train. A collective."""
        return next((reason for reason in gathered(self._read()) if reason is not None), None)

    def _read(self) -> str | None:
        """An unreachable Redis is a reason too: every attempt would wait as long."""
        try:
            client = connect(self.url, patient=True)
        except HoraError as error:
            return str(error)
        reason = client.hget(Keys(self.run).stopped, self.start)
        return None if reason is None else text_of(reason)


def not_started(workers: int, error: BaseException) -> str:
    """Why the ranks did not start: Ray's memory monitor, or else the free resources of the cluster."""
    if ended := _ended_for_memory(error):
        return ended
    free = ray.available_resources()
    return (
        f"the learner's ranks did not start: learner.workers = {workers} need a CPU each, and "
        f"a GPU each where there are GPUs; {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are "
        "free. Lower learner.workers or the replicas, or wait until the cluster is less busy "
        f"({reason(error)})"
    )


def reason(error: BaseException) -> str:
    """The innermost message of Ray Train's error, in one line, or the figures of Ray's memory monitor."""
    if ended := _ended_for_memory(error):
        return ended
    if isinstance(error, HoraError):
        return str(error)
    lines = [line for cause in _chain(error) for line in _lines(cause)[-1:]]
    last = re.sub(r"^(\w+\.)+\w+: ", "", lines[-1]) if lines else type(error).__name__
    return f"the learner stopped: {last}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or getattr(current, "cause", None)


def _ended_for_memory(error: BaseException) -> str | None:
    """What Ray's memory monitor says in the error or its causes: the killed process (the largest of several),
    its memory and that of the machine, and the remedy. None if it ended no process."""
    text = next((text for cause in _chain(error) if NODE_MEMORY.search(text := str(cause))), "")
    node = NODE_MEMORY.search(text)
    if node is None:
        return None
    largest = max(KILLED.finditer(text), key=lambda entry: float(entry["held"]), default=None)
    process = "it"
    if largest:
        process = f"process {largest['pid']} ({largest['name']}), which held {largest['held']} GB,"
    return (
        f"the learner stopped: Ray's memory monitor ended {process} because {node['used']} of "
        f"{node['limit']} GB of the machine {node['ip']} were in use: lower learner.tokens_per_microbatch, "
        "learner.workers, generator.replicas or generator.kv_cache_gib, end what else uses memory, or use a "
        "larger machine"
    )


def _lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines()
