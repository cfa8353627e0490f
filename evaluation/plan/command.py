"""`hora plan`: options as text to a plan that is shown."""

from __future__ import annotations

from pathlib import Path

from allocator.rules import get_rule
from allocator.session import STOPS
from evaluation.plan.counts import Counts, CountsError, read_counts
from evaluation.plan.forecast import ARMS, Plan, arms, forecast
from evaluation.plan.show import as_json, draw, show

SIZES = (8, 16, 32, 64, 128)


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
    """Read counts, forecast every combination, print it (as JSON with `json_`) and draw it into `out` where
    that is given.

    shard: prompts that are allocated together, where they are too few to count as a large batch. rules: names
    with commas, each with its stop behind a slash where it has one: `hit_utility/hit`.
    """
    counts = read_counts(source)
    sizes = _sizes(group_size, counts)
    pre = _numbers("--pre-rollouts", pre_rollouts) if pre_rollouts else [g for g in (4, 8) if g < max(sizes)]
    made = forecast(counts, arms(_rules(rules), _numbers("--rounds", rounds), pre, sizes), shard)
    if json_:
        print(as_json(made))
    else:
        show(made)
    if out is not None:
        path = draw(made, out)
        if not json_:
            print(f"figure: {path}")
    return made


def _sizes(text: str | None, counts: Counts) -> list[int]:
    if text:
        return _numbers("--group-size", text)
    within = [g for g in SIZES if 8 < g <= counts.reach]
    if not within:
        raise CountsError(
            f"{counts.reach} trials a prompt are too few to plan with: sample 16 or more, or "
            "give --group-size and --pre-rollouts within them"
        )
    return within


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise CountsError(f"{option} ({text}): must be whole numbers with commas") from None
    if min(numbers) < 1:
        raise CountsError(f"{option} ({text}): must be from 1")
    return numbers


def _rules(text: str | None) -> list[tuple[str, str]]:
    if text is None:
        return list(ARMS)
    found = []
    for part in text.split(","):
        rule, _, stop = part.partition("/")
        if (stop or "none") not in STOPS:
            raise CountsError(f"--rules ({part}): stop {stop!r} is none of {', '.join(STOPS)}")
        try:
            get_rule(rule)
        except ValueError as error:
            raise CountsError(f"--rules: {error}") from None
        found.append((rule, stop or "none"))
    return found
