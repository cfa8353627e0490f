"""Priors by name: what is believed about a prompt before its Phase A. `fixed` is the default."""

from __future__ import annotations

from allocator.priors.base import Prior
from allocator.priors.fixed import FixedPrior
from allocator.priors.make import make_prior

__all__ = ["FixedPrior", "Prior", "make_prior"]
