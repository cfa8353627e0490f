"""Priors of prompts' success rates before Phase A, by name. The default is `fixed`."""

from __future__ import annotations

from hora_rl.allocator.priors.base import FixedPrior, Prior
from hora_rl.allocator.priors.make import make_prior

__all__ = ["FixedPrior", "Prior", "make_prior"]
