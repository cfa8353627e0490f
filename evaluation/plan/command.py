"""`hora plan`: from files and text options to `allocator.plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hora_rl.allocator.planning.forecast import ARMS
from hora_rl.allocator.planning.forecast import plan as plan_of
from hora_rl.allocator.planning.table import Plan
from hora_rl.evaluation.plan.counts import CountsError, read_counts
from hora_rl.evaluation.plan.show import as_json, draw, show


def plan(
    source: Path,
    group_size: str | None,
    pre_rollouts: str | None,
    rules: str | None,
    rounds: str,
    json_: bool,
    out: Path | None,
    shard: int | None = None,
) -> Plan:
    """Read counts, make the plan, print it (as JSON with `json_`), and draw it into `out` if given.

    Options are those of `allocator.plan`, with commas between values. Raises CountsError.
    """
    counts = read_counts(source)
    sizes = _numbers("--group-size", group_size) if group_size else None
    pre = _numbers("--pre-rollouts", pre_rollouts) if pre_rollouts else None
    names, times = rules.split(",") if rules else ARMS, _numbers("--rounds", rounds)
    try:
        made = plan_of(counts.successes, counts.trials, sizes, pre, names, times, counts.tokens, shard)
    except ValueError as error:
        raise CountsError(f"{source}: {error}") from error
    made = replace(made, notes=(*counts.notes, *made.notes))
    if json_:
        print(as_json(made))
    else:
        show(made)
    if out is not None:
        path = draw(made, out)
        if not json_:
            print(f"figure: {path}")
    return made


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise CountsError(f"{option} ({text}): must be whole numbers with commas") from None
