"""Secrets that are created once and kept in a file only the owner can read."""

from __future__ import annotations

import secrets
from pathlib import Path

from hora_rl.common.files import replace_text


def kept_secret(file: Path, size: int) -> str:
    """The secret in `file`. If missing or empty, a new one is made from `size` random bytes."""
    if not file.exists() or not file.read_text().strip():
        replace_text(file, secrets.token_urlsafe(size), mode=0o600)
    return file.read_text().strip()
