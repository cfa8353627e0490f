"""JSON records of shards and groups: reports in Redis (`Keys.shards`) by coordinators, records in
groups.jsonl by the learner; and what the metrics of two steps say of the update between them. Fields that
older runs lack are optional."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NotRequired, TypedDict

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


class RoundReport(TypedDict):
    """One allocation round over the n prompts of a shard. `successes` (n,) are those since the previous
    allocation, in the first round of Phase A. `extra` (n,) is this round's Δ."""

    successes: list[int]
    extra: list[int]


class ShardReport(TypedDict):
    """A complete shard of n prompts. `groups`, `prompts`, `priors` (α0, β0), `successes` (c_i) and `extra`
    (Δ_i) have length n; `trials` is G0, `rewards` the means over Phase A. `hits` (n,) counts those of all
    rollouts of a group; None for a group to be sampled again."""

    batch: int
    shard: int
    groups: list[str]
    prompts: list[int]
    rule: str
    priors: list[list[float]]
    trials: int
    successes: list[int]
    extra: list[int]
    rounds: NotRequired[list[RoundReport]]
    rewards: NotRequired[dict[str, float]]
    hits: NotRequired[list[int | None]]
    seconds: float


class GroupRecord(TypedDict):
    """A trained group: one line of groups.jsonl. `size` is G_i = G0 + Δ_i, `hits` its successes; `rounds` and
    `round_hits` hold Δ and hits per round of Phase B. `tokens` counts sampled tokens. For episodes, `turns`
    counts the policy's turns and `context_tokens` the tokens between them."""

    step: int
    batch: int
    shard: int
    epoch: int
    prompt_index: int
    group_id: str
    rule: str
    prior: str
    prior_alpha: float
    prior_beta: float
    trials: int
    successes: int
    extra: int
    rounds: NotRequired[list[int]]
    round_hits: NotRequired[list[int]]
    size: int
    hits: int
    tokens: int
    reward_mean: float
    rewards: dict[str, float]
    source: NotRequired[str]
    length_mean: float
    version_min: int
    version_max: int
    mixed_phases: bool
    turns: NotRequired[int]
    context_tokens: NotRequired[int]


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
