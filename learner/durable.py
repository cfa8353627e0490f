"""What must survive a machine that fails is on its disk before anybody relies on it."""

from __future__ import annotations

import os
from pathlib import Path


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
