"""A disk that can be filled, where the tests run as root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

MIB = 2**20


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """`folder` as a disk of `mib` MiB while the block runs. Skips the test where it cannot be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a disk is for root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_up(disk: Path, leaving: int = 0) -> Path:
    """Fill the disk, `leaving` so many MiB; the file that does it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"0" * MIB)
    os.truncate(filler, max(0, filler.stat().st_size - leaving * MIB))
    return filler
