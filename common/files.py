"""Files that a reader finds whole: as they are now, or as they were before."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Put `text` in the place of `path`; `mode`, less the umask, is the new file's from the start."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=mode)
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
