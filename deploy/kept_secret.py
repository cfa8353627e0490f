"""Secrets that are made once and kept in a file that only its owner may read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def kept_secret(file: Path, size: int) -> str:
    """What `file` holds, made of `size` random bytes where it is not there or was never written to its end."""
    if not file.exists() or not file.read_text().strip():
        new = file.with_name(f"{file.name}.new")
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_text(secrets.token_urlsafe(size))
        os.replace(new, file)
    return file.read_text().strip()
