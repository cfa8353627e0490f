"""All of Ray's private API that the learner uses, so an upgrade of Ray is checked in one file. Ray Train is
imported on use: with torch it takes seconds, which a refusal need not wait for.

A learner puts its run's name into the metadata of its Ray job. Ray notices when a job ends, even by
SIGKILL."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hora_rl.common.errors import ConfigError

if TYPE_CHECKING:
    from ray.job_config import JobConfig
    from ray.train.torch import TorchConfig, TorchTrainer

RUN = "hora_run"
ABORT_S = 5.0
"""Seconds that a stop waits for Ray Train's controller. It does not answer while ranks start; then they end
with the Ray job."""


class Stop:
    """Ends a `run`, also from another thread: Ray Train's controller aborts its ranks."""

    def __init__(self) -> None:
        self.requested = False
        self._controller: Any = None
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.requested = True
        self._abort()

    def watch(self, controller: Any) -> None:
        with self._lock:
            self._controller = controller
        if self.requested:
            self._abort()

    def _abort(self) -> None:
        if self._controller is not None:
            import ray
            from ray.exceptions import RayError

            with suppress(RayError):  # the controller exits, or is busy
                ray.get(self._controller.abort.remote(), timeout=ABORT_S)


def job_of(run: str) -> JobConfig:
    from ray.job_config import JobConfig

    return JobConfig(metadata={RUN: run})


def refuse_beside_another(run: str) -> None:
    """Raise ConfigError if a learner of another run trains on the Ray cluster of this process: `run` would
    replace its application, because a cluster has only one."""
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import JobTableData

    table = state._connect_and_get_accessor().get_job_table(
        skip_submission_job_info_field=True, skip_is_running_tasks_field=True
    )
    jobs = [JobTableData.FromString(entry) for entry in table]
    running = {job.config.metadata[RUN] for job in jobs if not job.is_dead and RUN in job.config.metadata}
    if others := sorted(running - {run}):
        raise ConfigError(
            f"run {others[0]!r} trains on this Ray cluster, and its application would be replaced by that of "
            f"{run!r}: stop its `hora train` first (Ctrl-C), or use another Ray cluster"
        )


def torch_trainer(stop: Stop, loop: Callable[[dict[str, Any]], object], **settings: Any) -> TorchTrainer:
    """A trainer that names its controller to `stop`. Ray Train names it only to its handler of Ctrl-C, which
    is left out: it would wait without a limit for a controller whose ranks are starting."""
    from ray.train.torch import TorchTrainer

    class Trainer(TorchTrainer):
        def _register_sigint_handler(self, controller: Any) -> None:
            stop.watch(controller)

        def _initialize_and_run_controller(self, **settings: Any) -> Any:
            kept = settings["train_fn_ref"]
            settings["train_fn_ref"] = _Pickled(kept.get())
            del kept._ref
            return super()._initialize_and_run_controller(**settings)

    return Trainer(loop, **settings)


class _Pickled:
    """A function for Ray's workers, in place of a reference to the object store: when a stop ends the raylet
    first, a process that owns an object there ends at once, with status 1 and no word."""

    def __init__(self, function: Callable[[], Any]) -> None:
        from ray import cloudpickle

        self._bytes = cloudpickle.dumps(function)

    def get(self) -> Callable[[], Any]:
        from ray import cloudpickle

        function: Callable[[], Any] = cloudpickle.loads(self._bytes)
        return function


def torch_config(backend: str) -> TorchConfig:
    """Config of `backend`. If Ray's node is on loopback, as under `hora run`, the ranks rendezvous through a
    file, so no port is opened: Ray Train would use torch's TCPStore, which listens on all interfaces without
    a password. Else they use a port of rank 0's machine."""
    import ray
    from ray._common.network_utils import is_localhost
    from ray.train.torch import TorchConfig
    from ray.train.torch.config import (
        _set_torch_distributed_env_vars,
        _setup_torch_process_group,
        _TorchBackend,
    )

    class FileBackend(_TorchBackend):
        def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
            """Create the process group of `worker_group`; called again after each restart."""
            session = Path(ray._private.worker._global_node.get_session_dir_path())
            worker_group.execute(_set_torch_distributed_env_vars)
            size = len(worker_group)
            common = {
                "backend": backend_config.backend,
                "world_size": size,
                "init_method": f"file://{session / f'ranks-{uuid.uuid4().hex}'}",
                "timeout_s": backend_config.timeout_s,
            }
            joining = [
                worker_group.execute_single_async(rank, _setup_torch_process_group, world_rank=rank, **common)
                for rank in range(size)
            ]
            ray.get(joining)

    class FileConfig(TorchConfig):
        @property
        def backend_cls(self) -> type[FileBackend]:
            return FileBackend

    local = is_localhost(ray.util.get_node_ip_address())
    return FileConfig(backend=backend) if local else TorchConfig(backend=backend)
