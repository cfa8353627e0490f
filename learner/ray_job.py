"""Which runs train on a Ray cluster. A learner puts its run's name into the metadata of its Ray job. Ray
notices when a job ends, even by SIGKILL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hora_rl.common.errors import ConfigError

if TYPE_CHECKING:
    from ray.job_config import JobConfig

RUN = "hora_run"


def job_of(run: str) -> JobConfig:
    """The job config for `ray.init` of the process that trains `run`."""
    from ray.job_config import JobConfig

    return JobConfig(metadata={RUN: run})


def training_runs() -> set[str]:
    """The runs that train on the Ray cluster of this process."""
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import JobTableData

    table = state._connect_and_get_accessor().get_job_table(
        skip_submission_job_info_field=True, skip_is_running_tasks_field=True
    )
    jobs = [JobTableData.FromString(entry) for entry in table]
    return {job.config.metadata[RUN] for job in jobs if not job.is_dead and RUN in job.config.metadata}


def refuse_beside_another(run: str) -> None:
    """Raise ConfigError if a learner of another run trains on the Ray cluster of this process: `run` would
    replace its application, because a cluster has only one."""
    others = sorted(training_runs() - {run})
    if others:
        raise ConfigError(
            f"run {others[0]!r} trains on this Ray cluster, and its application would be replaced by that of "
            f"{run!r}: stop its `hora train` first (Ctrl-C), or use another Ray cluster"
        )
