"""Warnings about a run, most urgent first. Pure.

Views show the text; Prometheus, alerts and the page's logic use the kind.
"""

from collections.abc import Iterator

from hora_rl.common.live.telemetry import TELEMETRY
from hora_rl.deploy.monitor.run_state import IDLES, LEAST_S, Kind, RunState, Warning

MOST = 0.5
PATIENCE = 3
"""Warn if the gate stays closed for this many times the minimal number of cycles."""
BACKLOG_S = 2.0
SLOW_START_S = 60.0
STALL_S = 300.0


def warnings(state: RunState, drift_alarm: float) -> Iterator[Warning]:
    """Warnings about `state`; none for a finished run. A mean log-prob difference above `drift_alarm` means
    that weights differ."""
    if state.status == "finished":
        return
    if state.error:
        yield Warning(Kind.STOPPED, f"stopped: {state.error}")
    if state.paused:
        yield Warning(Kind.PAUSED, "paused by an operator")
    if state.unplaced:
        yield Warning(Kind.UNPLACED, state.unplaced)
    if state.redis_full:
        # Heartbeats cannot be written either, so living parts are unknown.
        full = f"Redis is at its memory limit ({state.redis_full}) and takes nothing: raise its maxmemory"
        yield Warning(Kind.REDIS_FULL, full)
        return
    yield from _foreign(state)
    if (drift := state.learner.get("drift") or 0.0) > drift_alarm:
        yield Warning(
            Kind.WEIGHTS_DISAGREE,
            "weights disagree: on the same version log-probs of generators and learner differ by "
            f"{drift:.3g} in the mean over {state.learner.get('drift/tokens') or 0:.0f} tokens, more than "
            f"weights.drift_alarm ({drift_alarm:g})",
        )
    yield from _different(state)
    yield from _silent(state)
    yield from _reported(state)
    yield from _idle(state)
    if state.dead_letters:
        yield Warning(Kind.DEAD_LETTERS, f"{state.dead_letters} dead letters")
    for part in state.alive("generator"):
        if part.behind(state.version) > state.max_staleness:
            holds = f"generator {part.name} holds version {part.state.get('version', 0)} of {state.version}"
            yield Warning(Kind.REPLICA_BEHIND, holds)
    if not state.paused and state.idle_s is not None and state.idle_s >= STALL_S:
        yield Warning(Kind.STALLED, f"no optimizer step for {state.idle_s:.0f} s{_waits(state)}")
    if state.moved:
        yield Warning(Kind.MOVED, state.moved)
    yield from _idle_allocation(state)


def _foreign(state: RunState) -> Iterator[Warning]:
    kinds: dict[int, set[str]] = {}
    for part in state.parts:
        version = part.state.get("telemetry", 1)
        if version != TELEMETRY and part.alive:
            kinds.setdefault(version, set()).add(part.kind)
    for version, names in sorted(kinds.items()):
        yield Warning(
            Kind.OTHER_VERSION,
            f"{', '.join(sorted(names))} of {'an older' if version < TELEMETRY else 'a newer'} hora "
            f"(telemetry {version}, here {TELEMETRY}): not all they report is shown; use one version for all "
            "parts",
        )


def _different(state: RunState) -> Iterator[Warning]:
    """Living replicas whose checksum differs from the majority of their version; all if there is no
    majority."""
    held: dict[int, dict[str, list[str]]] = {}
    for part in state.alive("generator"):
        if checksum := part.state.get("checksum"):  # none at version 0, and while it is computed
            held.setdefault(part.state.get("version", 0), {}).setdefault(checksum, []).append(part.name)
    for version, replicas in sorted(held.items()):
        of = sum(map(len, replicas.values()))
        odd = sorted(name for names in replicas.values() if 2 * len(names) <= of for name in names)
        if odd:
            text = f"of {of} generators on version {version}, {', '.join(odd)} match no majority"
            yield Warning(Kind.WEIGHTS_DISAGREE, f"weight checksums differ: {text}")


def _silent(state: RunState) -> Iterator[Warning]:
    needed = ("generator", "verifier", "coordinator", "learner")
    for kind in (*needed, "environment") if state.of("environment") else needed:  # only if the run has one
        parts = state.of(kind)
        if not state.alive(kind):
            since = f" for {min(p.silent_s for p in parts):.0f} s" if parts else ""
            yield Warning(Kind.NOT_ALIVE, f"no {kind} is alive{since}")
        elif kind in ("generator", "verifier", "environment"):
            for p in (p for p in parts if not p.alive):
                yield Warning(Kind.SILENT, f"{kind} {p.name} is silent for {p.silent_s:.0f} s")


def _reported(state: RunState) -> Iterator[Warning]:
    """Warnings reported in heartbeats: unavailable rewards, late evaluations, slow starts, notices."""
    away = "a reward is unavailable, the run waits for it up to ten minutes"
    for why in sorted({p.state["away"] for p in state.alive("verifier") if "away" in p.state}):
        yield Warning(Kind.REWARD_AWAY, f"{away}: {why}")
    for part in state.alive("evaluator"):
        if "late" in part.state:
            yield Warning(Kind.EVALUATION_LATE, part.state["late"])
    starting = [p.state for p in state.alive("learner") if p.state.get("state") == "starting"]
    slow = [beat for beat in starting if state.time - beat["started"] > SLOW_START_S]
    for seconds, what in sorted((round(state.time - s["started"]), s["waiting_for"]) for s in slow)[:1]:
        yield Warning(Kind.STARTING, f"the learner has been starting for {seconds} s: it waits for {what}")
    for part in state.parts:
        if part.alive and part.state.get("notice"):
            yield Warning(Kind.NOTICE, f"{part.kind} {part.name}: {part.state['notice']}")


def _idle(state: RunState) -> Iterator[Warning]:
    """The side that idles persistently, or a learner that waits much longer than for a step."""
    balance = None if state.paused else state.balance
    remedy = f"; {balance.remedy}" if balance and balance.remedy else ""
    if balance and balance.side == "generators":
        cause = "the learner is the bottleneck" if balance.learner < IDLES else _bottleneck(state)
        yield Warning(Kind.GENERATORS_IDLE, f"{balance.says}: {cause}{remedy}")
    elif (now := _starves(state)) or balance:
        busy = balance is not None and balance.generators is not None and balance.generators < IDLES
        cause = "generators are the bottleneck" if busy and not now else _bottleneck(state)
        says = balance.says if balance else "learner waits longer than for two steps"
        yield Warning(Kind.LEARNER_STARVING, f"{says}: {cause}{_lacking(state)}{remedy}")


def _bottleneck(state: RunState) -> str:
    """The part that the learner waits for: verifiers if answers wait while no generator runs a request, or
    wait longer than BACKLOG_S at the verifiers' rate."""
    running = sum(p.state.get("running", 0) for p in state.alive("generator"))
    answers = sum(p.state.get("waiting", 0) for p in state.alive("verifier"))
    rate = sum(p.state.get("answers_per_s", 0.0) for p in state.alive("verifier"))
    if answers and (not running or answers > BACKLOG_S * rate):
        return f"verifiers are the bottleneck ({answers} answers wait)"
    if running:
        return "generators are the bottleneck"
    return f"neither generators nor verifiers report work{_waits(state)}"


def _lacking(state: RunState) -> str:
    """The groups that the learner waits for. The queue may be full of newer groups while a group of an older
    batch is missing."""
    return "".join(
        f"; step {p.state['step']} lacks {p.state['missing']} of {state.prompts_per_batch} groups, the "
        f"oldest of batch {p.state['batch']}"
        for p in state.alive("learner")
        if "missing" in p.state
    )


def _waits(state: RunState) -> str:
    reasons = {p.state["waiting_for"] for p in state.of("coordinator") if "waiting_for" in p.state}
    return f"; the coordinator waits for {', '.join(sorted(reasons))}" if reasons else ""


def _starves(state: RunState) -> bool:
    waiting = any(p.state.get("state") == "waiting" for p in state.alive("learner"))
    if not waiting or state.paused or state.last_step_s is None:
        return False
    return (state.idle_s or 0.0) >= max(LEAST_S, 2 * (state.learner.get("time/step") or 0.0))


def _idle_allocation(state: RunState) -> Iterator[Warning]:
    """Conditions that reduce the run to plain GRPO or leave no signal, each with its remedy."""
    gate, learner, step = state.gate, state.learner, f"step {state.learner.get('step', 0):.0f}"
    if gate is not None and gate.mean is not None and gate.seen >= PATIENCE * gate.cycles:
        yield Warning(
            Kind.GATE_SHUT,
            f"warm-up gate still shut after {gate.seen} batches, so allocation is uniform (plain GRPO): the "
            f"mean {gate.reward} reward is {gate.mean:.2f}, and {gate.cycles} batches in a row need "
            f"{gate.needs:.2f}. `hora check` shows what the prompt asks for; or lower "
            "allocation.warmup.format_reward, or set allocation.warmup.enabled: false",
        )
    if learner.get("groups/hit") == 0:
        yield Warning(
            Kind.NO_HIT,
            f"no success in any of the {state.prompts_per_batch} groups of {step}: there is no hit to "
            "allocate by. `hora check` shows what a right answer must look like; where that is right, train "
            "on easier problems",
        )
    if (share := learner.get("groups/zero_signal") or 0.0) > MOST:
        rate = learner.get("success")
        what, remedy = "", "vary the problems' difficulty"
        if rate is not None:
            what = f" ({rate:.0%} of rollouts succeed)"
            remedy = f"train on {'harder' if rate >= MOST else 'easier'} problems"
        yield Warning(
            Kind.NO_SIGNAL,
            f"no signal in {share:.0%} of the groups of {step}: all their rollouts have equal rewards, "
            f"so they give no gradient{what}; {remedy} or raise rollout.group_size",
        )
    if (share := learner.get("length/cut") or 0.0) > MOST:
        yield Warning(
            Kind.CUT,
            f"{share:.0%} of the completions of {step} were cut at rollout.max_response_tokens "
            f"({state.max_response_tokens}): raise it, or see in `hora check` whether the stop tokens are "
            "those that this model ends with",
        )
