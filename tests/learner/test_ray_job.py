"""One run at a time trains on a Ray cluster."""

from collections.abc import Iterator

import pytest

from hora_rl.common.errors import ConfigError

pytestmark = [pytest.mark.system, pytest.mark.slow]  # starts Ray


@pytest.fixture
def learner_of_a() -> Iterator[None]:
    import ray

    from hora_rl.learner.ray_job import job_of

    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80 * 2**20,
        job_config=job_of("a"),
    )
    try:
        yield
    finally:
        ray.shutdown()


def test_another_run_is_refused_while_a_learner_is_attached(learner_of_a: None) -> None:
    import ray

    from hora_rl.learner.ray_job import refuse_beside_another, training_runs

    assert training_runs() == {"a"}
    refuse_beside_another("a")
    with pytest.raises(ConfigError, match=r"run 'a' trains on this Ray cluster.*replaced by that of 'b'"):
        refuse_beside_another("b")

    @ray.remote(num_cpus=0)
    def build() -> set[str]:
        """Serve builds an application in a task."""
        return training_runs()

    assert ray.get(build.remote()) == {"a"}
