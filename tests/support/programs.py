"""Programs that a test runs to their end, also in a Python that has no packages."""

import os
import subprocess
from pathlib import Path

from hora_rl.common.load import ROOT

SETUP = f"""\
import sys, types
ours = sys.modules["hora_rl"] = types.ModuleType("hora_rl")
ours.__path__ = [{str(ROOT)!r}]
"""
"""The first lines of a program for a Python without packages, which does not know where `hora_rl` is."""


def run_well(
    *command: str | Path, cwd: Path | None = None, limit_s: float = 60.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in the folder `cwd`, with these variables more; it must end well."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=limit_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
