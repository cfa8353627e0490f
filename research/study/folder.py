"""One `hora study` works in a folder at a time: two would train the same cells, and write the same files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hora_rl.common.errors import RunError


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a study's folder while the block runs; the kernel frees it however this process ends. Raises
    RunError where another study holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RunError(
                f"{folder}: another `hora study` (process {file.read()}) works there; wait for its end, or "
                "choose another --out"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
