"""Permissions of Ray's token file. The token allows starting programs on the cluster, and Ray writes it with
the umask's permissions, readable by all users on most machines."""

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path


def token_file() -> Path:
    """Path of Ray's token: RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token."""
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(named) if named else Path.home() / ".ray" / "auth_token"


def keep_token_private(*, make: bool = False) -> None:
    """Restrict the token file to its owner. With `make`, create a missing file first, as `ray.init` would. A
    file of another user stays unchanged; `hora check --all` reports it."""
    file = token_file()
    elsewhere = "RAY_AUTH_TOKEN" in os.environ or os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled"
    if make and not file.exists() and not elsewhere:
        _write_once(file, secrets.token_hex(32))
    if open_to_others(file):
        with suppress(PermissionError):
            file.chmod(0o600)


def open_to_others(file: Path) -> bool:
    """Whether the file exists and other users have permissions on it."""
    return file.is_file() and bool(file.stat().st_mode & 0o077)


def _write_once(file: Path, text: str) -> None:
    """Write atomically and keep an existing file, because two runs may start at once."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, new = tempfile.mkstemp(dir=file.parent)  # created with mode 0600
    try:
        with os.fdopen(handle, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        with suppress(FileExistsError):
            os.link(new, file)
    finally:
        os.unlink(new)
