"""Serve a model at the run's endpoint without training it, until interrupted.

python -m tests.support.endpoint_alone FOLDER PORT [KEY=VALUE ...]
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from rich.console import Console

from hora_rl.common.load import load
from hora_rl.deploy.launch.stack import stack
from hora_rl.deploy.machine.signals import stopped_by_signals


def main(folder: str, port: str, *values: str) -> None:
    config = load("tiny", ["serve.endpoint=true", f"telemetry.http_port={port}", *values])
    with stopped_by_signals():
        try:
            with stack(config, Path(folder), Console(), train=False):
                signal.pause()
        except (KeyboardInterrupt, SystemExit):
            print("stopped")


if __name__ == "__main__":
    main(*sys.argv[1:])
