"""Warnings about a run, most urgent first. Pure.

Views show the text; Prometheus, alerts and the page's logic use the kind.
"""

from __future__ import annotations

from hora_rl.common.live.telemetry import TELEMETRY
from hora_rl.deploy.monitor.balance import IDLES, LEAST_S
from hora_rl.deploy.monitor.run_state import Kind, Part, RunState, Warning

MOST = 0.5
PATIENCE = 3
"""Warn if the gate stays closed for this many times the minimal number of cycles."""
BACKLOG_S = 2.0
SLOW_START_S = 60.0


def warnings(state: RunState, stall_s: float, drift_alarm: float) -> list[Warning]:
    """Warnings about `state`; none for a finished run. `stall_s` seconds without a step count as a stall. A
    mean log-prob difference above `drift_alarm` means that weights differ."""
    if state.status == "finished":
        return []
    found = [Warning(Kind.STOPPED, f"stopped: {state.error}")] if state.error else []
    if state.paused:
        found.append(Warning(Kind.PAUSED, "paused by an operator"))
    if state.unplaced:
        found.append(Warning(Kind.UNPLACED, state.unplaced))
    if state.redis_full:
        # Heartbeats cannot be written either, so living parts are unknown.
        full = f"Redis is at its memory limit ({state.redis_full}) and takes nothing: raise its maxmemory"
        return [*found, Warning(Kind.REDIS_FULL, full)]
    found += _foreign(state) + _drifted(state, drift_alarm) + _different(state)
    found += _silent(state) + _away(state) + _late(state) + notices(state) + _flow(state)
    return found + _stalled(state, stall_s) + _idle_allocation(state)


def _foreign(state: RunState) -> list[Warning]:
    """One warning per telemetry version that differs from this reader's."""
    kinds: dict[int, set[str]] = {}
    for part in state.parts:
        version = part.state.get("telemetry", 1)
        if version != TELEMETRY and part.alive:
            kinds.setdefault(version, set()).add(part.kind)
    return [
        Warning(
            Kind.OTHER_VERSION,
            f"{', '.join(sorted(found))} of {'an older' if version < TELEMETRY else 'a newer'} hora "
            f"(telemetry {version}, here {TELEMETRY}): not all they report is shown; use one version for all "
            "parts",
        )
        for version, found in sorted(kinds.items())
    ]


def _drifted(state: RunState, alarm: float) -> list[Warning]:
    drift = state.learner.get("drift") or 0.0
    if drift <= alarm:
        return []
    text = (
        "weights disagree: on the same version log-probs of generators and learner differ by "
        f"{drift:.3g} in the mean over {state.learner.get('drift/tokens') or 0:.0f} tokens, more than "
        f"weights.drift_alarm ({alarm:g})"
    )
    return [Warning(Kind.WEIGHTS_DISAGREE, text)]


def _different(state: RunState) -> list[Warning]:
    """Living replicas whose checksum differs from the majority of their version; all if there is no
    majority."""
    held: dict[int, dict[str, list[str]]] = {}
    for part in _alive(state, "generator"):
        if checksum := part.state.get("checksum"):  # none at version 0, and while it is computed
            held.setdefault(part.state.get("version", 0), {}).setdefault(checksum, []).append(part.name)
    found: list[Warning] = []
    for version, replicas in sorted(held.items()):
        of = sum(map(len, replicas.values()))
        odd = sorted(name for names in replicas.values() if 2 * len(names) <= of for name in names)
        if odd:
            on = f"of {of} generators on version {version}, {', '.join(odd)}"
            found.append(
                Warning(Kind.WEIGHTS_DISAGREE, f"weights disagree: {on} hold what no majority holds")
            )
    return found


def _silent(state: RunState) -> list[Warning]:
    found: list[Warning] = []
    needed = ("generator", "verifier", "coordinator", "learner")
    for kind in (*needed, "environment") if state.of("environment") else needed:  # only if the run has one
        parts = state.of(kind)
        if not _alive(state, kind):
            since = f" for {min(p.silent_s for p in parts):.0f} s" if parts else ""
            found.append(Warning(Kind.NOT_ALIVE, f"no {kind} is alive{since}"))
        elif kind in ("generator", "verifier", "environment"):
            found += [
                Warning(Kind.SILENT, f"{kind} {p.name} is silent for {p.silent_s:.0f} s")
                for p in parts
                if not p.alive
            ]
    return found


def notices(state: RunState) -> list[Warning]:
    """Notices of living parts: why a learner is still starting, and what parts repaired or gave up."""
    said = [
        Warning(Kind.NOTICE, f"{p.kind} {p.name}: {p.state['notice']}")
        for p in state.parts
        if p.alive and p.state.get("notice")
    ]
    return _starting(state) + said


def _starting(state: RunState) -> list[Warning]:
    waits = {
        (round(state.time - p.state["started"]), p.state["waiting_for"])
        for p in _alive(state, "learner")
        if p.state.get("state") == "starting" and state.time - p.state["started"] > SLOW_START_S
    }
    return [
        Warning(Kind.STARTING, f"the learner has been starting for {n} s: it waits for {what}")
        for n, what in sorted(waits)[:1]
    ]


def _late(state: RunState) -> list[Warning]:
    said = [p.state["late"] for p in _alive(state, "evaluator") if "late" in p.state]
    return [Warning(Kind.EVALUATION_LATE, text) for text in said]


def _away(state: RunState) -> list[Warning]:
    reasons = sorted({p.state["away"] for p in _alive(state, "verifier") if "away" in p.state})
    away = "a reward is unavailable, the run waits for it up to reward.wait_limit_s"
    return [Warning(Kind.REWARD_AWAY, f"{away}: {why}") for why in reasons]


def _flow(state: RunState) -> list[Warning]:
    found = _idle(state)
    if state.dead_letters:
        found.append(Warning(Kind.DEAD_LETTERS, f"{state.dead_letters} dead letters"))
    for part in _alive(state, "generator"):
        if part.behind(state.version) > state.max_staleness:
            holds = f"generator {part.name} holds version {part.state.get('version', 0)} of {state.version}"
            found.append(Warning(Kind.REPLICA_BEHIND, holds))
    return found


def _idle(state: RunState) -> list[Warning]:
    """The side that idles persistently, or a learner that waits much longer than for a step."""
    balance = None if state.paused else state.balance
    remedy = f"; {balance.remedy}" if balance and balance.remedy else ""
    if balance and balance.side == "generators":
        cause = "the learner is the bottleneck" if balance.learner < IDLES else _bottleneck(state)
        return [Warning(Kind.GENERATORS_IDLE, f"{balance.says}: {cause}{remedy}")]
    now = _starves(state)
    if balance is None and not now:
        return []
    busy = balance is not None and balance.generators is not None and balance.generators < IDLES
    cause = "generators are the bottleneck" if busy and not now else _bottleneck(state)
    says = balance.says if balance else "learner waits longer than for two steps"
    return [Warning(Kind.LEARNER_STARVING, f"{says}: {cause}{_lacking(state)}{remedy}")]


def _bottleneck(state: RunState) -> str:
    """The part that the learner waits for, by the reported work.

    Verifiers are the bottleneck if answers wait while no generator runs a request, or wait longer than
    BACKLOG_S at the verifiers' rate.
    """
    running = sum(p.state.get("running", 0) for p in _alive(state, "generator"))
    answers = sum(p.state.get("waiting", 0) for p in _alive(state, "verifier"))
    rate = sum(p.state.get("answers_per_s", 0.0) for p in _alive(state, "verifier"))
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
        for p in _alive(state, "learner")
        if "missing" in p.state
    )


def _alive(state: RunState, kind: str) -> list[Part]:
    return [p for p in state.of(kind) if p.alive]


def _waits(state: RunState) -> str:
    found = {p.state["waiting_for"] for p in state.of("coordinator") if "waiting_for" in p.state}
    return f"; the coordinator waits for {', '.join(sorted(found))}" if found else ""


def _starves(state: RunState) -> bool:
    """Whether the learner has waited for longer than two steps take."""
    waiting = any(p.state.get("state") == "waiting" for p in _alive(state, "learner"))
    if not waiting or state.paused or state.last_step_s is None:
        return False
    return (state.idle_s or 0.0) >= max(LEAST_S, 2 * (state.learner.get("time/step") or 0.0))


def _stalled(state: RunState, stall_s: float) -> list[Warning]:
    if state.paused or state.idle_s is None or state.idle_s < stall_s:
        return []
    return [Warning(Kind.STALLED, f"no optimizer step for {state.idle_s:.0f} s{_waits(state)}")]


def _idle_allocation(state: RunState) -> list[Warning]:
    """Conditions that reduce the run to plain GRPO or leave no signal, each with its remedy."""
    found = {
        Kind.GATE_SHUT: _gate_shut(state),
        Kind.NO_HIT: _no_hit(state),
        Kind.NO_SIGNAL: _no_signal(state),
        Kind.CUT: _cut(state),
    }
    return [Warning(kind, text) for kind, text in found.items() if text]


def _gate_shut(state: RunState) -> str:
    gate = state.gate
    if gate is None or gate.mean is None or gate.seen < PATIENCE * gate.cycles:
        return ""
    return (
        f"warm-up gate still shut after {gate.seen} batches, so allocation is uniform (plain GRPO): the mean "
        f"{gate.reward} reward is {gate.mean:.2f}, and {gate.cycles} batches in a row need {gate.needs:.2f}. "
        "`hora check` shows what the prompt asks for; or lower allocation.warmup.format_reward, or set "
        "allocation.warmup.enabled: false"
    )


def _no_hit(state: RunState) -> str:
    if state.learner.get("groups/hit") != 0:
        return ""
    return (
        f"no success in any of the {state.prompts_per_batch} groups of step "
        f"{state.learner.get('step', 0):.0f}: there is no hit to allocate by. `hora check` shows what a "
        "right answer must look like; where that is right, train on easier problems"
    )


def _no_signal(state: RunState) -> str:
    share = state.learner.get("groups/zero_signal") or 0.0
    if share <= MOST:
        return ""
    rate = state.learner.get("success")
    what, remedy = "", "vary the problems' difficulty or raise rollout.group_size"
    if rate is not None:
        what = f" ({rate:.0%} of rollouts succeed)"
        remedy = f"train on {'harder' if rate >= MOST else 'easier'} problems or raise rollout.group_size"
    return (
        f"no signal in {share:.0%} of the groups of step {state.learner.get('step', 0):.0f}: their rollouts "
        f"earn the same, and teach nothing{what}; {remedy}"
    )


def _cut(state: RunState) -> str:
    share = state.learner.get("length/cut") or 0.0
    if share <= MOST:
        return ""
    return (
        f"{share:.0%} of the completions of step {state.learner.get('step', 0):.0f} were cut at "
        f"rollout.max_response_tokens ({state.max_response_tokens}): raise it, or see in `hora check` "
        "whether the stop tokens are those that this model ends with"
    )
