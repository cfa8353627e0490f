"""Secrets that are made once and kept in a file that only its owner may read."""

from __future__ import annotations

import secrets
from pathlib import Path

from hora_rl.common.files import replace_text


def kept_secret(file: Path, size: int) -> str:
    """What `file` holds, made of `size` random bytes where it is not there or was never written to its
    end."""
    if not file.exists() or not file.read_text().strip():
        replace_text(file, secrets.token_urlsafe(size), mode=0o600)
    return file.read_text().strip()
