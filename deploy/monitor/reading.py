"""Read the snapshot of a run that every view shows.

Needs only Redis. A dead part appears as silent, with a warning.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import redis

from hora_rl.common.config import GeneratorConfig, LearnerConfig, WarmUpConfig
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import depth_of
from hora_rl.common.live.state import SharedState, read_config
from hora_rl.common.live.telemetry import FLOWS, PartBeat
from hora_rl.common.records import moves
from hora_rl.deploy.monitor.run_state import KEPT, Gate, Part, RunState, Split, balance, split_of
from hora_rl.deploy.monitor.warnings import warnings
from hora_rl.evaluation.phase_b import PhaseB, total

GONE_S = 60.0
WINDOW_S = 60.0
MIN_WINDOW_S = 1.0


def read_run(client: redis.Redis, run: str, now: float | None = None) -> RunState:
    """Read the state of `run` at `now` (seconds since the epoch, default: the current time). Read-only.
    Raises RunError if Redis has no such run."""
    keys, now = Keys(run), time.time() if now is None else now
    stored, fields, counters, heartbeats, length, taken, steps, history, evaluations, memory = _fetch(
        client, keys, now
    )
    config, state = read_config(stored, run), SharedState.parse(fields)
    rollout, gate = config.rollout, _gate(config.gate, config.allocation.warmup, state)
    totals = {k.decode(): int(v) for k, v in counters.items()}
    used, most = memory.get("used_memory", 0), memory.get("maxmemory", 0)
    parts = _parts(heartbeats, now)
    records = [numbers(entry[b"metrics"]) for _, entry in steps]
    learner = records[0] if records else {}
    # A stream entry's id starts with its time in milliseconds.
    last_step_s = max(0.0, now - int(steps[0][0].split(b"-")[0]) / 1000) if steps else None
    split = _split(config.generator, config.learner, state.device, parts)
    status = "stopped" if state.error else "paused" if state.paused else "running"
    status = "finished" if state.step >= config.learner.steps else status
    snapshot = RunState(
        run=run,
        time=now,
        status=status,
        step=state.step,
        paused=state.paused,
        controls=state.token_sha256 is not None,
        unplaced=state.unplaced,
        error=state.error,
        warm_up=gate is not None,
        gate=gate,
        resting=state.resting if config.data.rest else None,
        steps=config.learner.steps,
        max_staleness=rollout.max_staleness,
        rule=config.allocation.rule,
        prompts_per_batch=rollout.prompts_per_batch,
        group_size=rollout.group_size,
        max_response_tokens=rollout.max_response_tokens,
        pre_rollouts=rollout.pre_rollouts,
        queue_capacity=config.capacity,
        redis_full=f"{used >> 20:,} of {most >> 20:,} MiB" if 0 < most <= used else "",
        last_step_s=last_step_s,
        idle_s=_idle(last_step_s, parts, state, now),
        version=state.version,
        queue_depth=depth_of(length, taken, state.durable_step, rollout.prompts_per_batch),
        dead_letters=totals.get("dead_letters", 0),
        rates=_rates([json.loads(entry[b"sample"]) for _, entry in history[::-1]], totals, now),
        totals={name: totals.get(name, 0) for name in (*FLOWS, "mixed_groups")},
        lag={stat: learner.get(f"lag/{stat}") or 0.0 for stat in ("mean", "max")},
        **_allocation(totals, rollout.pre_rollouts),
        learner=learner,
        balance=balance(records[::-1], config.learner.steps, rollout.max_staleness, split),
        moved="".join(moves(records[::-1])[-1:]),
        evaluations={int(v): numbers(evaluations[v]) for v in sorted(evaluations, key=int)},
        parts=parts,
    )
    return replace(snapshot, warnings=tuple(warnings(snapshot, config.weights.drift_alarm)))


def _fetch(client: redis.Redis, keys: Keys, now: float) -> list[Any]:
    """All that a snapshot needs, in one round trip."""
    with client.pipeline(transaction=False) as pipe:
        pipe.get(keys.config)
        pipe.hgetall(keys.state)
        pipe.hgetall(keys.counters)
        pipe.hgetall(keys.parts)
        pipe.xlen(keys.groups)
        pipe.hlen(keys.ledger)
        pipe.xrevrange(keys.steps, count=KEPT)
        pipe.xrevrange(keys.history, min=f"{int((now - WINDOW_S) * 1000)}", count=int(WINDOW_S * 2))
        pipe.hgetall(keys.evaluations)
        pipe.info("memory")
        return pipe.execute()


def _gate(reward: str | None, warmup: WarmUpConfig, state: SharedState) -> Gate | None:
    if reward is None or state.gate_open:
        return None
    return Gate(reward, warmup.format_reward, warmup.cycles, state.gate_seen, state.gate_mean)


def numbers(text: bytes) -> dict[str, Any]:
    """Parse metrics, with None for non-finite values, because browsers' JSON has no NaN."""
    return json.loads(text, parse_constant=lambda _: None)


def rate(flow: str, before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Mean rate per second of a counter between two samples; 0 after a counter reset."""
    return max(0.0, after.get(flow, 0) - before.get(flow, 0)) / max(1e-3, after["time"] - before["time"])


def _rates(samples: list[dict[str, float]], totals: Mapping[str, int], now: float) -> dict[str, float]:
    if not samples or now - samples[0]["time"] < MIN_WINDOW_S:
        return dict.fromkeys(FLOWS, 0.0)
    return {flow: rate(flow, samples[0], {**totals, "time": now}) for flow in FLOWS}


def _split(
    generator: GeneratorConfig, learner: LearnerConfig, device: str, parts: Sequence[Part]
) -> Split | None:
    """The configured split, which holds only while as many generators live."""
    alive = sum(p.kind == "generator" and p.alive for p in parts)
    return split_of(generator, learner, device) if alive == generator.replicas else None


def _allocation(totals: Mapping[str, int], trials: int) -> dict[str, Any]:
    """Phase B by c_i, from the counters of `Telemetry.allocation`; empty before the first shard."""
    counts = {k: v for k, v in totals.items() if k.startswith(("phase_a:", "phase_b:"))}
    rules = dict.fromkeys(k.partition(":")[2].rpartition(":")[0] for k in counts)
    phase_b = total([(rule, _of_rule(counts, rule, trials)) for rule in rules], trials)
    return {
        "phase_a": dict(enumerate(phase_b.prompts.tolist())) if counts else {},
        "phase_b": dict(enumerate(phase_b.rollouts.tolist())) if counts else {},
        "shares": tuple(phase_b.shares()) if counts else (),
    }


def _of_rule(counters: Mapping[str, int], rule: str, trials: int) -> PhaseB:
    names = ([f"{phase}:{rule}:{c}" for c in range(trials + 1)] for phase in ("phase_a", "phase_b"))
    return PhaseB(*(np.array([counters.get(name, 0) for name in of_phase]) for of_phase in names))


def _parts(raw: Mapping[bytes, bytes], now: float) -> tuple[Part, ...]:
    """Recently seen parts, and a dead learner or coordinator without a successor."""
    parts = []
    for name, text in sorted(raw.items()):
        beat: PartBeat = json.loads(text, parse_constant=lambda _: None)
        kind, _, short = name.decode().partition("/")
        parts.append(Part(kind, short, max(0.0, now - beat.pop("seen")), beat))
    alive = {p.kind for p in parts if p.silent_s < GONE_S}
    gone = {"learner", "coordinator"} - alive
    return tuple(p for p in parts if p.silent_s < GONE_S or p.kind in gone)


def _idle(last_step_s: float | None, parts: Sequence[Part], state: SharedState, now: float) -> float | None:
    """Seconds since the last step, the learner's start or the end of a pause. None without a learner."""
    started = [p.state["started"] for p in parts if p.kind == "learner" and "started" in p.state]
    if not started:
        return None
    ages = [now - max(started), now - state.unpaused]
    return max(0.0, min(ages if last_step_s is None else [*ages, last_step_s]))
