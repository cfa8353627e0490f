"""Report to all views which parts of a run Ray cannot place on the cluster, and what to lower."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

import redis

from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.state import changed
from hora_rl.common.processes import background_thread
from hora_rl.deploy.app import APP
from hora_rl.deploy.launch.evaluation import TrainingRun
from hora_rl.deploy.monitor.reading import read_run

EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Share:
    """One kind of part: numbers wanted and up, and the CPUs and GPUs that Ray reserves for each."""

    name: str
    wanted: int
    up: int
    each: Mapping[str, float]

    def needs(self, resource: str) -> float:
        return self.wanted * self.each.get(resource, 0.0)


def unplaced(shares: Sequence[Share], have: Mapping[str, float]) -> str:
    """A message naming the parts that wait, if all parts together need more than the cluster has; else
    empty."""
    for resource in ("CPU", "GPU"):
        need = sum(share.needs(resource) for share in shares)
        waiting = [s for s in shares if s.up < s.wanted and s.needs(resource)]
        if need > have.get(resource, 0.0) and waiting:
            missing = ", ".join(f"{s.wanted - s.up} of {s.wanted} {s.name}" for s in waiting)
            terms = " + ".join(
                f"{s.wanted} {s.name} · {s.each[resource]:g}" for s in shares if s.needs(resource)
            )
            return (
                f"no place for {missing}: {need:g} {resource}s are reserved = {terms}, the cluster has "
                f"{have.get(resource, 0.0):g}; lower replicas or what each reserves, or join more machines"
            )
    return ""


def reports_unplaced(run: TrainingRun) -> AbstractContextManager[None]:
    """Update the `unplaced` field of the run's state while the block runs, and clear it afterwards. Needs an
    attached Ray."""

    def report(done: threading.Event) -> None:
        import ray
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        client, state = connect(run.url), Keys(run.config.run.name).state
        reported: str | None = None  # an earlier start may have set the field
        have, all_up = dict[str, float](), False
        while not done.wait(EVERY_S):
            # A failed check, for example before the coordinator is up, is repeated.
            with suppress(RayError, RayServeException, redis.exceptions.RedisError, RunError):
                if not all_up:  # while Ray's node ends, this call can end the process without a word
                    have = ray.cluster_resources()
                shares = _shares(run, client, have)
                all_up, now = all(s.up >= s.wanted for s in shares), unplaced(shares, have)
                if now != reported:
                    client.hset(state, mapping=changed(unplaced=now))
                    reported = now
        with suppress(redis.exceptions.RedisError):
            client.hset(state, mapping=changed(unplaced=""))

    return background_thread("placement", report, EVERY_S)


def _shares(run: TrainingRun, client: redis.Redis, have: Mapping[str, float]) -> list[Share]:
    from ray import serve

    config = run.config
    on_gpus = have.get("GPU", 0) > 0
    generator, application = config.generator, serve.status().applications.get(APP)
    gpus = generator.tensor_parallel * on_gpus if generator.gpus is None else generator.gpus
    shares = []
    for name in config.deployments:
        deployment = None if application is None else application.deployments.get(name)
        states = {} if deployment is None else deployment.replica_states
        up, stopping = states.get("RUNNING", 0), states.get("STOPPING", 0)
        each = {"CPU": config.cpus(name), "GPU": gpus if name == "generator" else 0.0}
        shares.append(Share(name, sum(states.values()) - stopping, up, each))
    alive = any(p.alive for p in read_run(client, config.run.name).of("learner"))
    ranks = config.learner.workers
    each = {"CPU": 1.0, "GPU": float(on_gpus) * (config.learner.gpus or 1.0)}
    return [*shares, Share("learner rank", ranks, ranks * alive, each)]
