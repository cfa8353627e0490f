"""A script on several ranks, started as torchrun does, or alone in a process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ALONE = {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
END = """
import os, sys
import torch
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""
"""Engines and groups of a script live to its end, where C++ may abort in their threads, on a busy machine
often. Everything has been printed then."""


def run_ranks(script: str, folder: Path, *args: str, ranks: int = 2, limit_s: float = 280.0) -> str:
    """What `script` prints, all ranks together; it must end well. It imports from the repository."""
    (folder / "rank.py").write_text(script + END)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    launcher += ["--log-dir", str(folder / "logs"), "--redirects", "3"]  # ranks would cut each other's lines
    command = [sys.executable, *(launcher if ranks > 1 else ()), str(folder / "rank.py"), *args]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONPATH": paths}
    env |= {} if ranks > 1 else ALONE
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ran = subprocess.run(command, env=env, cwd=ROOT, timeout=limit_s, **streams)
    logs = sorted((folder / "logs").rglob("*.log"))
    printed = "".join(log.read_text(errors="replace") for log in logs) + ran.stdout
    assert ran.returncode == 0, printed[-8000:]
    return printed


def cases_of(printed: str) -> list[Any]:
    """The lines that are JSON lists of lists: what a script found, case by case."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("[[")]


def gather_everything() -> None:
    """Make ZeRO-3 gather every parameter in this process; by default small ones are whole on every rank."""
    from hora_rl.learner.model import engine

    made = engine.deepspeed_config

    def gathering(*arguments: Any) -> dict[str, Any]:
        settings: dict[str, Any] = made(*arguments)
        settings["zero_optimization"]["stage3_param_persistence_threshold"] = 0
        return settings

    engine.deepspeed_config = gathering
