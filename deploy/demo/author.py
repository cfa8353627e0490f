"""How well the simulated author of the warm start remembers a fact."""

from __future__ import annotations

import hashlib


def recall(fact: str) -> float:
    """Probability that a fact is remembered: 1 for two in three facts, 0.3 to 0.7 for one in five, 0.005 to
    0.04 for the rest. A pure function of the fact."""
    digest = hashlib.blake2b(fact.encode(), digest_size=16).digest()
    kind, level = (int.from_bytes(part, "little") / 2**64 for part in (digest[:8], digest[8:]))
    if kind < 0.65:
        return 1.0
    return 0.3 + 0.4 * level if kind < 0.85 else 0.04 * 0.125**level
