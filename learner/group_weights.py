"""The factor of a group's advantages (`learner.objective.group_weight`). Under `grpo` a rare prompt's
expected update grows with the root of its group's size. These weights apply that without unequal groups,
remove that effect, or weight by difficulty."""

from __future__ import annotations

from hora_rl.common.advantages import size_weight
from hora_rl.common.config.objective import GroupWeight
from hora_rl.common.errors import RunError
from hora_rl.common.types import Group


def group_weight(group: Group, weight: GroupWeight, group_size: int) -> float:
    """The factor of `group`, with G = `group_size`. Raises RunError for a group without the size that as_if
    needs."""
    if weight.kind == "sqrt_size":
        return float(size_weight(group.size, group_size))
    if weight.kind == "inverse_sqrt_size":
        return 1.0 / float(size_weight(group.size, group_size))
    if weight.kind == "difficulty":
        return by_difficulty(group.hits / group.size, weight)
    if weight.kind == "as_if":
        if not group.size_as_if:
            raise RunError(
                f"group {group.id} does not say its size under rule {weight.as_if} "
                "(learner.objective.group_weight.as_if): it was sampled under another configuration"
            )
        return float(size_weight(group.size_as_if, group_size))
    return 1.0


def by_difficulty(rate: float, weight: GroupWeight) -> float:
    """clamp((τ/p̂)^γ, lo, hi)."""
    if rate == 0.0:
        return weight.hi
    return min(weight.hi, max(weight.lo, (weight.tau / rate) ** weight.gamma))
