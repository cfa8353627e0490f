"""Whether the paths of the sockets that a run makes fit into the kernel's limit."""

import os
import tempfile

from hora_rl.common.errors import RunError

LONGEST = 107
"""Bytes of a socket's path (`sun_path` of unix(7), without its final NUL)."""
OF_RAY = "ray/session_2026-01-02_03-04-05_678901_4194304/sockets/plasma_store"
OF_ENGINE = "hora-engine-12345678/01234567-89ab-cdef-0123-456789abcdef"
"""The longest path below the folder for temporary files, of Ray and of vLLM (a uuid)."""


def check_sockets() -> int:
    """The bytes of the longest path. Raises RunError if the folder for temporary files is too long, as one of
    a batch scheduler's job may be."""
    named = next((key for key in ("RAY_TMPDIR", "TMPDIR") if key in os.environ), "TMPDIR")
    places = ((named, os.environ.get(named, "/tmp"), OF_RAY), ("TMPDIR", tempfile.gettempdir(), OF_ENGINE))
    for key, folder, file in places:
        most, has = LONGEST - len(file) - 1, len(os.fsencode(folder))
        if has > most:
            raise RunError(
                f"{key} ({folder}): {has} bytes, and {'Ray' if file is OF_RAY else 'vLLM'} adds "
                f"{len(file) + 1} for its sockets, whose paths may have {LONGEST}: set {key} to a folder of "
                f"this machine of at most {most} bytes, as in {key}=/tmp"
            )
    return max(len(os.fsencode(os.path.join(folder, file))) for _, folder, file in places)
