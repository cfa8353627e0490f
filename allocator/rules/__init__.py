"""Rules by name. One rule, one small file; a user's own is named `package.module:function`.

Such a function is the rule's marginal gain and nothing else:

    def gain(posterior: Posterior, level: NDArray[np.int64]) -> NDArray[np.float64]

`posterior` has alpha, beta, successes, trials and mean; `level` counts the extra rollouts already given; all shapes
broadcast. The result is what one more rollout is worth, finite and not negative, and it must not rise with the
level: otherwise giving the next rollout to the highest gain is not optimal, and the rule is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from allocator.posterior import Float, Int, Posterior
from allocator.rules.base import Marginal, Rule
from allocator.rules.hard_first import HARD_FIRST
from allocator.rules.hit_utility import HIT_UTILITY
from allocator.rules.knapsack import KNAPSACK
from allocator.rules.uniform import UNIFORM
from allocator.rules.variance import VARIANCE

RULES: dict[str, Rule] = {r.name: r for r in (HIT_UTILITY, UNIFORM, HARD_FIRST, VARIANCE, KNAPSACK)}


def get_rule(name: str) -> Rule:
    """The rule of that name. ValueError when there is none, or when a user's function cannot be found."""
    if not isinstance(name, str):
        raise ValueError(f"rule: must be a name or 'package.module:function', not {name!r}")
    return RULES[name] if name in RULES else _load(name)


@lru_cache(maxsize=64)
def _load(name: str) -> Marginal:
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"rule: {name!r} is none of {', '.join(RULES)}, nor package.module:function")
    try:
        gain = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ValueError(f"rule: {name!r} cannot be loaded: {error}") from error
    if not callable(gain):
        raise ValueError(f"rule: {name!r} is no function but {gain!r}")
    return from_gain(name, gain)


def from_gain(name: str, gain: Callable[[Posterior, Int], Float]) -> Marginal:
    """A user's gain function as a rule; its values are checked wherever they are read."""

    def log_gain(posterior: Posterior, level: Int) -> Float:
        shape = np.broadcast_shapes(posterior.alpha.shape, level.shape)
        values = np.asarray(gain(posterior, level), dtype=np.float64)
        if values.shape != shape:
            raise ValueError(f"rule {name}: must return shape {shape}, not {values.shape}")
        if not np.all(np.isfinite(values) & (values >= 0)):
            raise ValueError(f"rule {name}: gains must be finite and not negative")
        # The smallest float64 above zero has a logarithm of -745; a finite one for zero keeps differences defined.
        with np.errstate(divide="ignore"):
            return np.maximum(np.log(values), -1000.0)

    return Marginal(name, log_gain)
