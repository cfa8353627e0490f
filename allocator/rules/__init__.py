"""Rules by name. A user's rule is a function or `package.module:function`.

The function returns the rule's marginal gain:

    def gain(posterior: Posterior, level: NDArray[np.int64]) -> NDArray[np.float64]

`posterior` has alpha, beta, successes, trials and mean. `level` counts the extra rollouts already given. All
shapes broadcast. The result is the value of one more rollout: finite, not negative, and not rising with the
level. A rising gain is refused, because the highest gain first is not optimal then.

A name may have parameters: `expected_worth(10)`, `expected_worth(10, 0.75)`, `first_hit(4)`,
`first_hit(hit_utility)`, `hit_or_miss(3)`, `variance(dr_grpo,prior)`, `reinforce_ada(16)`.
"""

import importlib
import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from hora_rl.allocator.posterior import Float, Posterior
from hora_rl.allocator.rules import hits, published
from hora_rl.allocator.rules.base import Division, Gain, Marginal, Rule, Split

RULES: dict[str, Rule] = {
    r.name: r
    for r in (
        *(hits.HIT_UTILITY, hits.PROBE_AWARE, hits.FIRST_HIT, hits.MIXED, hits.HIT_OR_MISS),
        *(published.UNIFORM, published.HARD_FIRST, published.EVEN_SIZES),
        *(published.VARIANCE, published.KNAPSACK, published.REINFORCE_ADA, published.AR3PO),
    )
}


def needs_counts(name: str) -> bool:
    """Whether the rule uses counts of successes. A user's rule is assumed to, without importing it."""
    rule = RULES.get(name)
    return not isinstance(rule, Division) or rule.needs_counts


def get_rule(rule: str | Rule | Gain) -> Rule:
    """The rule of that name or function. Raises ValueError for an unknown name or a bad parameter."""
    if isinstance(rule, Marginal | Division | Split):
        return rule
    if isinstance(rule, str):
        return RULES[rule] if rule in RULES else _load(rule)
    if callable(rule):
        return from_gain(getattr(rule, "__qualname__", repr(rule)), rule)
    raise ValueError(f"rule: must be a name, 'package.module:function' or a function, not {rule!r}")


@lru_cache(maxsize=64)
def _load(name: str) -> Rule:
    if match := re.fullmatch(r"(hit_or_miss|first_hit|expected_worth|variance|reinforce_ada)\((.*)\)", name):
        rule, parameter = match.groups()
        try:
            return PARAMETERS[rule](parameter)
        except ValueError as error:
            raise ValueError(f"rule: {name!r}: {error}") from None
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"rule: {name!r} is none of {', '.join(RULES)}, nor package.module:function")
    try:
        gain = getattr(importlib.import_module(module), function)
    except Exception as error:  # a module may raise anything when it is imported
        raise ValueError(f"rule: {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(gain):
        raise ValueError(f"rule: {name!r} is no function but {gain!r}")
    return from_gain(name, gain)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"needs a number, not {text!r}") from None


def _noise_and_overlap(text: str) -> Rule:
    noise, *overlap = map(_number, text.split(","))
    if len(overlap) > 1:
        raise ValueError(f"takes the noise of a hit and the overlap, not {text!r}")
    return hits.expected_worth(noise, *overlap)


def _from_one(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise ValueError(f"needs a whole number from 1, the successes to leave with, not {text!r}")
    return int(text)


def _first_hit(text: str) -> Rule:
    return hits.first_hits(_from_one(text)) if text.isdecimal() else hits.first_hit(get_rule(text))


PARAMETERS: dict[str, Callable[[str], Rule]] = {
    "hit_or_miss": lambda text: hits.hit_or_miss(_number(text)),
    "expected_worth": _noise_and_overlap,
    "first_hit": _first_hit,
    "reinforce_ada": lambda text: published.reinforce_ada(_from_one(text)),
    "variance": lambda text: published.variance(frozenset(part.strip() for part in text.split(","))),
}


def from_gain(name: str, gain: Gain) -> Marginal:
    """A user's gain function as a rule whose values are checked."""

    def table(posterior: Posterior, depth: int) -> Float:
        values = np.asarray(gain(posterior[:, None], np.arange(depth)[None, :]), dtype=np.float64)
        if values.shape != (shape := (len(posterior), depth)):
            raise ValueError(f"rule {name}: must return shape {shape}, not {values.shape}")
        if not np.all(np.isfinite(values) & (values >= 0)):
            raise ValueError(f"rule {name}: gains must be finite and not negative")
        # log of the smallest positive float64 is -745. A finite value for zero keeps differences defined.
        with np.errstate(divide="ignore"):
            return np.maximum(np.log(values), -1000.0)

    return Marginal(name, table)
