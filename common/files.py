"""Atomic and durable writes, checks of files before they are read, and YAML files as plain values."""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hora_rl.common.errors import ConfigError, RunError

FULL = 2**20  # a disk with fewer free bytes is full
MOST_FILES = 10_000
"""Maximum number of files in a folder that is read as a data set."""


def check_regular(path: Path) -> None:
    """Raise ConfigError if the path exists and is no regular file: reading a pipe would block."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: is neither a file nor a folder (a pipe, a device): copy it to a file")


def check_folder(folder: Path) -> None:
    """Raise ConfigError for a folder with too many files, or with one that `check_regular` refuses."""
    for number, path in enumerate(folder.rglob("*"), start=1):
        if number > MOST_FILES:
            raise ConfigError(f"{folder}: holds more than {MOST_FILES:,} files: name one file, or fewer")
        if not path.is_dir() and not path.is_symlink():
            check_regular(path)


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a new file that replaces `path` after the block. `mode`, less the umask, is its mode."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=mode)
    yield new
    os.replace(new, path)


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace the content of `path` with `text` atomically."""
    with replacing(path, mode) as new:
        new.write_text(text, encoding="utf-8")


def remove(folder: Path) -> None:
    """Delete a folder, renamed to partial-removed-* first: after a kill no half of it has its name."""
    gone = folder.with_name(f"partial-removed-{folder.name}")
    if gone.exists():  # half of an earlier one
        shutil.rmtree(gone)
    shutil.rmtree(folder.rename(gone))


@contextmanager
def alone(path: Path, waiting: Callable[[str], object]) -> Iterator[None]:
    """Let one process at a time make `path`; `waiting` is called with a line if another does. The lock ends
    with its process."""
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(f"waiting for another process that makes {path}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kept_secret(file: Path, size: int) -> str:
    """The secret in `file`. If missing or empty, one of `size` random bytes that only the owner can read."""
    if not file.exists() or not file.read_text().strip():
        replace_text(file, secrets.token_urlsafe(size), mode=0o600)
    return file.read_text().strip()


def check_room(folder: Path) -> None:
    """Raise RunError if the disk of `folder` is full. A failed write does not always say so."""
    if shutil.disk_usage(folder).free < FULL:
        raise RunError(f"the disk of {folder} is full: free some of it, then resume the run")


def sync(*paths: Path) -> None:
    """Flush these files, or the entries of these folders, to disk."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_tree(folder: Path) -> None:
    """Flush `folder` and everything below to disk: files first, then the folders that name them."""
    below = list(folder.rglob("*"))
    sync(*(p for p in below if p.is_file()), folder, *(p for p in below if p.is_dir()))


class OnceEach(yaml.SafeLoader):
    """Refuses duplicate keys. Plain YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def text_override(key: str, text: str) -> str:
    """An override of `key` with a text, whatever that is as YAML: `1000`, or a name with ` #` in it."""
    return f"{key}={json.dumps(text, ensure_ascii=False)}"


def read_yaml(path: Path, source: str) -> Any:
    """The content of `path`; `source` is the user's name for it. Raises ConfigError and FileNotFoundError."""
    check_regular(path)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=OnceEach)
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: not YAML that can be read: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # a number of 5,000 digits
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
