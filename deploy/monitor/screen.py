"""Draw one snapshot for a terminal: a screen of at least 80 columns, or a single line. Pure."""

import time
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hora_rl.common.console import plain_table
from hora_rl.deploy.monitor.run_state import Part, RunState
from hora_rl.evaluation.results import span

SIDE_BY_SIDE = 110
"""Minimal columns to place replicas and allocation side by side, so that 30 rows suffice."""
REPLICAS = 8
"""Replicas per kind. Those with problems come first; the rest is summed up."""
SHOWN = 0.01
"""Minimal share of a step's time for a part to be shown."""
COLOURS = {"running": "green", "finished": "blue", "paused": "yellow", "stopped": "red"}


def screen(state: RunState, width: int = 80, problem: str = "") -> RenderableType:
    """The screen of a run. `problem`: why the state is outdated, if it is."""
    warnings = (problem,) if problem else state.warnings
    parts: list[RenderableType] = [_head(state, problem), *(Text(f"! {w}", "yellow") for w in warnings)]
    parts += [Text(), _flows(state), Text(), _learner(state)]
    parts += [*_sources(state), *_evaluation(state), Text()]
    if not state.shares:
        parts.append(_replicas(state))
    elif width < SIDE_BY_SIDE:
        parts += [_replicas(state), Text(), _allocation(state, width)]
    else:
        columns = Table.grid(padding=(0, 4))
        columns.add_row(_replicas(state), _allocation(state, width - 62))
        parts.append(columns)
    return Group(*parts)


def line(state: RunState) -> str:
    """One line for logs: `12:00:01 step 7/30 v7 queue 12/120 in 3.1 out 2.9 groups/s reward 0.412`."""
    rates, reward = state.rates, state.learner.get("reward")
    text = (
        f"{time.strftime('%H:%M:%S', time.localtime(state.time))} {state.run} {state.status} step "
        f"{state.step}/{state.steps} v{state.version} queue {state.queue_depth}/{state.queue_capacity} in "
        f"{rates['groups_in']:.2f} out {rates['groups_out']:.2f} groups/s {rates['tokens_in']:.0f} tokens/s"
    )
    if reward is not None:
        text += f" reward {reward:.3f}"
    return f"{text} | {'; '.join(map(str, state.warnings))}" if state.warnings else text


def _head(state: RunState, problem: str) -> Text:
    head = Text.assemble(
        (state.run, "bold"),
        "  ",
        (f" {state.status} ", f"reverse {COLOURS[state.status]}"),
        f"  step {state.step} of {state.steps}  weights v{state.version}  ",
        (f"warm-up: uniform, then {state.rule}" if state.warm_up else state.rule, "dim"),
        ("" if state.resting is None else f"  {state.resting} prompts rest", "dim"),
    )
    if problem:
        head.append(f"  {time.time() - state.time:.0f} s old", "red")
    return head


def _flows(state: RunState) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", width=12, no_wrap=True)
    depth = f"{state.queue_depth}/{state.queue_capacity}"
    full = state.queue_depth >= state.queue_capacity
    table.add_row("queue", Text(depth, "red" if full else ""))
    for what in ("groups", "rollouts", "tokens"):
        rates = (f"{way} {_number(state.rates[f'{what}_{way}'])}/s" for way in ("in", "out"))
        table.add_row(what, "  ".join(rates))
    lag = f"{state.lag['mean']:.2f} mean {state.lag['max']:.0f} max (bound {state.max_staleness})"
    table.add_row("lag", lag)
    return table


def _learner(state: RunState) -> RenderableType:
    metrics = state.learner
    if not metrics:
        does = [f"{part.state.get('state', 'alive')}, no step yet" for part in state.of("learner")]
        return Text(f"learner: {does[0] if does else 'not seen'}")
    shown = [
        f"{label} {metrics[name]:{form}}"
        for label, name, form in (
            ("reward", "reward", ".3f"),
            ("format", "reward/format", ".0%"),
            ("success", "success", ".0%"),
            ("length", "length/mean", ".0f"),
            ("entropy", "entropy", ".2f"),
        )
        if metrics.get(name) is not None
    ]
    times = {
        k.removeprefix("time/"): v for k, v in metrics.items() if k.startswith("time/") and v is not None
    }
    step = times.pop("step", None) or sum(times.values())
    longest = sorted(((v, name) for name, v in times.items() if v >= SHOWN * step), reverse=True)
    ago = "" if state.last_step_s is None else f", {_span(state.last_step_s)} ago"
    loss = "" if metrics.get("loss") is None else f"  loss {metrics['loss']:.4f}"
    return Group(
        _line("learner  " + "  ".join(shown)),
        Text(f"         last step {_span(step)}{ago}{loss}", "dim"),
        _line("         " + "  ".join(f"{name} {_span(v)}" for v, name in longest), "dim"),
    )


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _sources(state: RunState) -> Iterator[Text]:
    forms = {"reward": ".3f", "success": ".1%", "groups/hit": ".1%"}
    for source, figures in state.sources.items():
        shares = [f"  {name} {figures[name]:{form}}" for name, form in forms.items() if name in figures]
        yield _line(f"{source}: {figures.get('groups', 0):.0f} groups{''.join(shares)}")


def _evaluation(state: RunState) -> Iterator[Text]:
    """The newest Pass@K with its weights: `v20`, or `v20 to v23` if they changed meanwhile."""
    if state.evaluations:
        newest = max(state.evaluations)
        scores = state.evaluations[newest]
        weights = span(int(scores.get("version/min", newest)), int(scores.get("version/max", newest)))
        shown = (f"  {k} {v:.1%}" for k, v in scores.items() if k.startswith("pass@"))
        yield _line(f"held out {weights}{''.join(shown)}")


def _replicas(state: RunState) -> RenderableType:
    tables: list[RenderableType] = []
    if not state.of("generator"):
        tables.append(Text("no generator has reported", "dim"))
    for kind, names, row in (
        ("generator", ("version", "running", "waiting", "cache"), _generator),
        ("verifier", ("answers/s", "waiting", "killed", "pid"), _verifier),
    ):
        # Late or silent replicas must not be summed up.
        parts = sorted(state.of(kind), key=lambda p: (not _troubled(p, state), p.name))
        if parts:
            table = _table(kind, names)
            for part in parts[:REPLICAS]:
                seen = Text(f"{_span(part.silent_s)} ago", "red" if _silent(part, state) else "dim")
                table.add_row(Text(part.name), *row(part, state), seen)
            tables.append(table)
            if rest := parts[REPLICAS:]:
                waits, seen_s = sum(p.state.get("waiting", 0) for p in rest), max(p.silent_s for p in rest)
                more = f"and {len(rest)} more, {waits} waiting, seen within {_span(seen_s)}"
                tables.append(Text(more, "dim"))
    others = (p for p in state.parts if p.kind not in ("generator", "verifier"))
    return Group(*tables, *(Text(_other(p, state), "dim", no_wrap=True) for p in others))


def _table(kind: str, names: Sequence[str]) -> Table:
    table = plain_table()
    table.add_column(kind, min_width=9, max_width=20, overflow="ellipsis", no_wrap=True)
    for name in (*names, "seen"):
        table.add_column(name, justify="right", no_wrap=True, min_width=9 if name == names[0] else 7)
    return table


def _generator(part: Part, state: RunState) -> list[Text]:
    beat = part.state
    version = f"v{beat.get('version', '?')}"
    work = [str(beat.get("running", "")), str(beat.get("waiting", "")), f"{beat.get('cache', 0):.0%}"]
    return [Text(version, "red" if _behind(part, state) else ""), *map(Text, work)]


def _verifier(part: Part, _state: RunState) -> list[Text]:
    beat = part.state
    return [
        Text(_number(beat.get("answers_per_s", 0.0))),
        Text(str(beat.get("waiting", ""))),
        Text(str(beat.get("killed", "")), "yellow" if beat.get("killed") else ""),
        Text(str(beat.get("pid", ""))),
    ]


def _behind(part: Part, state: RunState) -> bool:
    return part.behind(state.version) > state.max_staleness


def _silent(part: Part, state: RunState) -> bool:
    return not part.alive and not state.ended


def _troubled(part: Part, state: RunState) -> bool:
    return _silent(part, state) or (part.kind == "generator" and _behind(part, state))


def _other(part: Part, state: RunState) -> str:
    who, waits = f"{part.kind} {part.name[:16]}: ", str(part.state.get("waiting_for") or "nothing")
    if state.ended:
        return who + "ended"
    if _silent(part, state):
        return f"{who}silent for {_span(part.silent_s)}"
    does = part.state.get("state", "alive") if waits.startswith("nothing") else f"waits for {waits}"
    return f"{who}{does}"


def _allocation(state: RunState, width: int) -> Table:
    """For each c: share of prompts after Phase A, and their share of Phase B."""
    table = Table.grid(padding=(0, 2))
    for justify in ("right", "right", "left", "right", "left"):
        table.add_column(justify=justify)  # type: ignore[arg-type]
    most = max(share or 0.0 for s in state.shares for share in (s.prompts, s.phase_b))
    bar = max(8, min(30, (width - 32) // 2)) / most
    table.add_row(*(Text(t, "dim") for t in ("c", "prompts", "", "Phase B", "")))
    for s in state.shares:
        a, b = s.prompts or 0.0, s.phase_b or 0.0
        bars = Text("█" * round(a * bar), "cyan"), Text("█" * round(b * bar), "magenta")
        table.add_row(s.name, f"{a:.1%}", bars[0], f"{b:.1%}", bars[1])
    return table


def _number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.1f}M"
    if value >= 1e4:
        return f"{value / 1e3:.1f}k"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
