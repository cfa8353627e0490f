"""Rendezvous hashing: one of several names for a key, the same in every process while that name is there.
Another set of names moves as few keys as possible."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def chosen(key: str, names: Iterable[str]) -> str:
    """The name for `key`, whatever the order of `names`, which are not empty."""
    return max(names, key=lambda name: hashlib.blake2b(f"{key}:{name}".encode(), digest_size=8).digest())
