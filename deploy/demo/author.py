"""How well the author of a warm start remembers a fact."""

from __future__ import annotations

import hashlib


def recall(fact: str) -> float:
    """How often a fact is remembered: always for two in three, 0.3 to 0.7 for one in five, 0.005 to 0.04 for
    the rest. Pure in the fact."""
    digest = hashlib.blake2b(fact.encode(), digest_size=16).digest()
    kind, level = (int.from_bytes(part, "little") / 2**64 for part in (digest[:8], digest[8:]))
    if kind < 0.65:
        return 1.0
    return 0.3 + 0.4 * level if kind < 0.85 else 0.04 * 0.125**level
