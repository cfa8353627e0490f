"""Files that a reader finds whole, and that survive a machine that fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import RunError

FULL = 2**20  # bytes that are free


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A new file to write, which takes the place of `path` at the end of the block; `mode`, less the umask,
    is its own."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=mode)
    yield new
    os.replace(new, path)


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Put `text` in the place of `path`."""
    with replacing(path, mode) as new:
        new.write_text(text, encoding="utf-8")


def check_room(folder: Path) -> None:
    """Raise RunError when the disk of `folder` is full: why a write failed is not always said."""
    if shutil.disk_usage(folder).free < FULL:
        raise RunError(f"the disk of {folder} is full: free some of it, then resume the run")


def sync(*paths: Path) -> None:
    """These files, or the entries of these folders, on the disk."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_tree(folder: Path) -> None:
    """Every file and folder below `folder`, and itself: files first, then the folders that name them."""
    below = list(folder.rglob("*"))
    sync(*(p for p in below if p.is_file()), folder, *(p for p in below if p.is_dir()))
