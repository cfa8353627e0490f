"""Programs that a test runs to their end."""

import os
import subprocess
from pathlib import Path


def run_well(
    *command: str | Path, cwd: Path | None = None, limit_s: float = 60.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in the folder `cwd`, with these variables more; it must end well."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=limit_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
