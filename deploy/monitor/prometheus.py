"""Export the snapshot as Prometheus metrics through Ray: `hora_<what>_<unit>`, exported as `ray_hora_...`.

Set once per second from the snapshot. Totals in Redis become counters: a process adds the increase since its
first snapshot, so its restart is an ordinary counter reset.
"""

from collections.abc import Iterator

from ray.util.metrics import Counter, Gauge

from hora_rl.deploy.monitor.run_state import Kind, RunState

# name -> (description with unit, tags besides `run`)
GAUGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hora_queue_groups": ("Groups that no step has taken.", ()),
    "hora_queue_capacity_groups": ("Groups the queue holds before producers wait.", ()),
    "hora_step": ("Optimizer steps done.", ()),
    "hora_step_age_seconds": ("Time since the last step, the learner's start or the end of a pause.", ()),
    "hora_weight_version": ("Published weight version.", ()),
    "hora_staleness_bound_steps": ("rollout.max_staleness.", ()),
    "hora_lag_steps": ("Steps from the sampling weights to the last step; up to twice the bound.", ("stat",)),
    "hora_reward": ("Mean reward of the last step, by name.", ("name",)),
    "hora_source": (
        "Figures of the last step by data source: groups, rollouts, tokens, reward, success, groups/hit.",
        ("source", "stat"),
    ),
    "hora_entropy_nats": ("Entropy of the policy at the last step.", ()),
    "hora_response_tokens": ("Length of completions at the last step.", ("stat",)),
    "hora_step_seconds": ("Time of the last step, by part.", ("part",)),
    "hora_phase_a_prompts": ("Prompts by successes in Phase A; reset after the warm-up.", ("successes",)),
    "hora_phase_b_rollouts": ("Phase B rollouts by successes in Phase A; reset likewise.", ("successes",)),
    "hora_pass_at_k": ("Pass@K of the newest evaluation.", ("k",)),
    "hora_evaluation_version": ("Step, and oldest and newest version, of the newest evaluation.", ("stat",)),
    "hora_replica_version": ("Weight version of a generator replica.", ("replica",)),
    "hora_replica_requests": ("Requests of a generator replica.", ("replica", "state")),
    "hora_replica_cache_ratio": ("Used share of a replica's KV cache.", ("replica",)),
    "hora_replicas_behind": ("Replicas behind by more than the staleness bound.", ()),
    "hora_verifier_answers_per_second": ("Answers that a verifier replica judges.", ("replica",)),
    "hora_verifier_waiting_answers": ("Answers that wait in a verifier replica.", ("replica",)),
    "hora_verifier_killed_answers": ("Answers whose process was killed, since the start.", ("replica",)),
    "hora_parts_alive": ("Parts seen in the last ten seconds, by kind.", ("kind",)),
    "hora_learner_starving": ("1 while the learner waits for groups a quarter of its time or more.", ()),
    "hora_weights_disagree": ("1 while parts hold different weights of one version.", ()),
    "hora_warning": ("1 while there is a warning of this kind.", ("kind",)),
    "hora_dead_letters": ("Messages that could not be used, since the start.", ()),
    "hora_paused": ("1 while paused by an operator.", ()),
    "hora_running": ("1 until the run is finished or stopped by an error.", ()),
    "hora_stopped": ("1 when the run was stopped by an error.", ()),
    "hora_reading_timestamp_seconds": ("When the run was last read: Ray repeats old values for ever.", ()),
    "hora_resting_prompts": ("Prompts that rest, by data.rest.", ()),
    "hora_warm_up": ("1 while allocation is uniform because the format is not learned.", ()),
}
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "hora_groups": ("Groups, into and out of the queue.", ("direction",)),
    "hora_rollouts": ("Rollouts, into and out of the queue.", ("direction",)),
    "hora_tokens": ("Completion tokens, into and out of the queue.", ("direction",)),
}
WORK: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    "generator": (
        ("hora_replica_requests", {"state": "running"}),
        ("hora_replica_requests", {"state": "waiting"}),
        ("hora_replica_cache_ratio", {}),
    ),
    "verifier": (("hora_verifier_answers_per_second", {}), ("hora_verifier_waiting_answers", {})),
}
"""Gauges with their tags to reset when a replica is gone."""
EXPORTED = {f"ray_{name}" for name in GAUGES} | {f"ray_{name}_total" for name in COUNTERS}
"""Names of the metrics at Ray's endpoint."""
Value = tuple[str, dict[str, str], float]


class Exporter:
    """Observer of the feed that exports metrics. Needs a Ray process."""

    def __init__(self) -> None:
        self._gauges = {n: Gauge(n, d, ("run", *tags)) for n, (d, tags) in GAUGES.items()}
        self._counters = {n: Counter(n, d, ("run", *tags)) for n, (d, tags) in COUNTERS.items()}
        self._before: dict[tuple[str, str], float] = {}
        self._replicas: set[tuple[str, str]] = set()

    def __call__(self, state: RunState) -> None:
        for name, tags, value in gauges(state):
            self._gauges[name].set(value, {"run": state.run, **tags})
        for name, tags, total in counters(state):
            key = (name, tags["direction"])
            added = total - self._before.setdefault(key, total)
            if added > 0:
                self._counters[name].inc(added, {"run": state.run, **tags})
            self._before[key] = total
        # Ray repeats the last value of replicas that are gone.
        now = {(p.kind, p.name) for p in state.parts}
        for kind, name in self._replicas - now:
            for gauge, tags in WORK.get(kind, ()):
                self._gauges[gauge].set(0, {"run": state.run, "replica": name, **tags})
        self._replicas = now


def gauges(state: RunState) -> Iterator[Value]:
    """Every gauge of one snapshot: name, tags besides `run`, value."""
    yield "hora_queue_groups", {}, state.queue_depth
    yield "hora_queue_capacity_groups", {}, state.queue_capacity
    yield "hora_step", {}, state.step
    if state.idle_s is not None:
        yield "hora_step_age_seconds", {}, state.idle_s
    yield "hora_weight_version", {}, state.version
    yield "hora_dead_letters", {}, state.dead_letters
    yield "hora_staleness_bound_steps", {}, state.max_staleness
    yield "hora_paused", {}, state.paused
    yield "hora_running", {}, state.status in ("running", "paused")
    yield "hora_stopped", {}, state.status == "stopped"
    yield "hora_reading_timestamp_seconds", {}, state.time
    yield "hora_warm_up", {}, state.warm_up
    yield "hora_resting_prompts", {}, state.resting or 0
    yield "hora_learner_starving", {}, state.warns(Kind.LEARNER_STARVING)
    yield "hora_weights_disagree", {}, state.warns(Kind.WEIGHTS_DISAGREE)
    for kind in Kind:
        yield "hora_warning", {"kind": kind.value}, state.warns(kind)
    for stat, lag in state.lag.items():
        yield "hora_lag_steps", {"stat": stat}, lag
    for c, prompts in state.phase_a.items():
        yield "hora_phase_a_prompts", {"successes": str(c)}, prompts
    for c, rollouts in state.phase_b.items():
        yield "hora_phase_b_rollouts", {"successes": str(c)}, rollouts
    for source, figures in state.sources.items():
        for stat, figure in figures.items():
            yield "hora_source", {"source": source, "stat": stat}, figure
    yield from _evaluation(state)
    yield from _learner(state)
    yield from _parts(state)


def counters(state: RunState) -> Iterator[Value]:
    for what in ("groups", "rollouts", "tokens"):
        for direction in ("in", "out"):
            yield f"hora_{what}", {"direction": direction}, state.totals[f"{what}_{direction}"]


def _evaluation(state: RunState) -> Iterator[Value]:
    if not state.evaluations:
        return
    step = max(state.evaluations)
    yield "hora_evaluation_version", {"stat": "step"}, step
    for name, value in state.evaluations[step].items():
        what, _, rest = name.partition("@" if name.startswith("pass@") else "/")
        if what == "pass":
            yield "hora_pass_at_k", {"k": rest}, value
        elif what == "version":
            yield "hora_evaluation_version", {"stat": rest}, value


def _learner(state: RunState) -> Iterator[Value]:
    for name, value in state.learner.items():
        if not isinstance(value, int | float):
            continue
        if name == "reward" or name.startswith("reward/"):
            yield "hora_reward", {"name": name.partition("/")[2] or "total"}, value
        elif name == "entropy":
            yield "hora_entropy_nats", {}, value
        elif name.startswith("length/"):
            yield "hora_response_tokens", {"stat": name.removeprefix("length/")}, value
        elif name.startswith("time/"):
            yield "hora_step_seconds", {"part": name.removeprefix("time/")}, value


def _parts(state: RunState) -> Iterator[Value]:
    behind = 0
    for part in state.of("generator"):
        tags, beat = {"replica": part.name}, part.state
        behind += part.behind(state.version) > state.max_staleness and part.alive
        yield "hora_replica_version", tags, beat.get("version", 0)
        yield "hora_replica_cache_ratio", tags, beat.get("cache", 0.0)
        yield "hora_replica_requests", {**tags, "state": "running"}, beat.get("running", 0)
        yield "hora_replica_requests", {**tags, "state": "waiting"}, beat.get("waiting", 0)
    yield "hora_replicas_behind", {}, behind
    for part in state.of("verifier"):
        tags = {"replica": part.name}
        yield "hora_verifier_answers_per_second", tags, part.state.get("answers_per_s", 0.0)
        yield "hora_verifier_waiting_answers", tags, part.state.get("waiting", 0)
        yield "hora_verifier_killed_answers", tags, part.state.get("killed", 0)
    for kind in ("generator", "verifier", "coordinator", "learner"):
        yield "hora_parts_alive", {"kind": kind}, sum(p.alive for p in state.of(kind))
