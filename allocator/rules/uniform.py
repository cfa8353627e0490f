"""What GRPO does: every prompt the same."""

from __future__ import annotations

from allocator.rules.base import Division, evenly

UNIFORM = Division("uniform", evenly)
