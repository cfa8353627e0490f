"""Files that a reader finds whole, and that survive a machine that fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hora_rl.common.errors import ConfigError, RunError

FULL = 2**20  # bytes that are free
MOST_FILES = 10_000
"""Of a folder that is read as a data set."""


def check_regular(path: Path) -> None:
    """Raise ConfigError for what is there and is no regular file: a pipe would be waited for."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is neither a file nor a folder (a pipe, a device): copy it to a file")


def check_folder(folder: Path) -> None:
    """Raise ConfigError for a folder with too many files, or with what `check_regular` refuses."""
    for number, path in enumerate(folder.rglob("*"), start=1):
        if number > MOST_FILES:
            raise ConfigError(f"{folder}: holds more than {MOST_FILES:,} files: name one file, or fewer")
        if not path.is_dir() and not path.is_symlink():
            check_regular(path)


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
