"""The file with Ray's token: who reads it can start programs on the cluster. Ray writes it with the
rights that the umask leaves, which on most machines lets everybody read it."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path


def token_file() -> Path:
    """Where Ray looks for its token: RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(named) if named else Path.home() / ".ray" / "auth_token"


def keep_token_private(*, make: bool = False) -> None:
    """Take the token file's rights from everybody but its owner. With `make`, write it first where there is
    none, as `ray.init` would. A file of another owner is left alone: `hora check --all` says so."""
    file = token_file()
    if make and not file.exists() and not _given_otherwise():
        _write_once(file, secrets.token_hex(32))
    if open_to_others(file):
        with suppress(PermissionError):
            file.chmod(0o600)


def open_to_others(file: Path) -> bool:
    """Whether anybody but its owner has rights on a file that is there."""
    return file.is_file() and bool(file.stat().st_mode & 0o077)


def _given_otherwise() -> bool:
    return "RAY_AUTH_TOKEN" in os.environ or os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled"


def _write_once(file: Path, text: str) -> None:
    """A whole file or none, and the first one that is written stays: two runs may start at once."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, new = tempfile.mkstemp(dir=file.parent)  # its owner's alone from the start
    try:
        with os.fdopen(handle, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        with suppress(FileExistsError):
            os.link(new, file)
    finally:
        os.unlink(new)
