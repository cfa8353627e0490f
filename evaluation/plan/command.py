"""`hora plan`: from files and text options to `allocator.plan`, printed."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from hora_rl.allocator.planning.plan import ARMS
from hora_rl.allocator.planning.plan import plan as plan_of
from hora_rl.allocator.planning.table import Plan
from hora_rl.evaluation.plan.counts import CountsError, read_counts


def plan(
    source: Path,
    group_size: str | None,
    pre_rollouts: str | None,
    rules: str | None,
    rounds: str,
    json_: bool,
    gradients: str | None = None,
) -> Plan:
    """Read counts, make the plan, and print it (as JSON with `json_`).

    Options are those of `allocator.plan`, with commas between values. Raises CountsError.
    """
    counts = read_counts(source)
    sizes = _numbers("--group-size", group_size) if group_size else None
    pre = _numbers("--pre-rollouts", pre_rollouts) if pre_rollouts else None
    names, times = rules.split(",") if rules else ARMS, _numbers("--rounds", rounds)
    shared = _gradients(gradients) if gradients else None
    try:
        made = plan_of(counts.successes, counts.trials, sizes, pre, names, times, shared)
    except ValueError as error:
        raise CountsError(f"{source}: {error}") from error
    made = replace(made, notes=(*counts.notes, *made.notes))
    if json_:
        print(json.dumps({"verdict": made.verdict, **asdict(made)}))
    else:
        best = made.recommended
        rule = f"allocation.rule={best.rule} allocation.rounds={best.rounds} allocation.stop={best.stop} "
        print(
            f"{made}\nrecommended: {rule if made.worthwhile else 'allocation.rule=uniform '}"
            f"rollout.group_size={best.group_size} rollout.pre_rollouts={best.pre_rollouts}"
        )
    return made


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise CountsError(f"{option} ({text}): must be whole numbers with commas") from None


def _gradients(text: str) -> tuple[float, float, int]:
    try:
        noise, overlap, prompts = text.split(",")
        return float(noise), float(overlap), int(prompts)
    except ValueError:
        raise CountsError(f"--gradients ({text}): must be r,OVERLAP,PROMPTS, such as 9.5,0.75,64") from None
