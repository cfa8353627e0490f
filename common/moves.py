"""Updates that moved the policy too far, by the metrics of two steps. Pure: the learner's log, every view and
the report say the same."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

Metrics = Mapping[str, float | None]
HALVED, LEAST_NATS = 0.5, 0.25
"""Share of the entropy of the step before, and its least fall in nats: a small one halves from batch to
batch."""
CAPPED = 0.03
"""Share of trained tokens whose importance weight is at its cap."""
REMEDY = (
    "what it lost seldom comes back: start again with more learner.optimizer.warmup_steps or a lower "
    "learner.optimizer.learning_rate"
)


def moved(before: Metrics, now: Metrics) -> str:
    """What shows in step `now`, after the step `before`, that an update moved the policy too far, and the
    remedy; empty if nothing does. Entropies are `entropy/trained`: exact, on the step's own weights."""
    old, new = before.get("entropy/trained"), now.get("entropy/trained")
    capped = now.get("importance/capped") or 0.0
    signs = []
    if old is not None and new is not None and new <= min(HALVED * old, old - LEAST_NATS):
        signs.append(f"the entropy fell from {old:.2f} to {new:.2f} nats")
    if capped > CAPPED:
        signs.append(f"{capped:.0%} of the importance weights are at learner.objective.importance_cap")
    if not signs:
        return ""
    return f"step {now.get('step') or 0:.0f}: the policy moved far: {', '.join(signs)}; {REMEDY}"


def moves(steps: Iterable[Metrics]) -> list[str]:
    """`moved` of each of `steps`, oldest first, after the one before; only what it found."""
    return [warning for pair in pairwise([{}, *steps]) if (warning := moved(*pair))]
