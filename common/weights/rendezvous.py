"""Rendezvous hashing: maps a key to one of several names, the same in every process. Changing the names moves
as few keys as possible."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def chosen(key: str, names: Iterable[str]) -> str:
    """The name for `key`, independent of the order of `names`, which must not be empty."""
    return max(names, key=lambda name: hashlib.blake2b(f"{key}:{name}".encode(), digest_size=8).digest())
