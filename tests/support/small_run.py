"""One `hora run` of the demo at a small size."""

import os
import subprocess
import sys
from pathlib import Path

STEPS, PROMPTS, GROUP = 4, 8, 6
SETTINGS = {
    "run.name": "loop",
    "rollout.prompts_per_batch": PROMPTS,
    "rollout.group_size": GROUP,
    "rollout.pre_rollouts": 2,
    "rollout.shards": 2,
    "learner.steps": STEPS,
    "learner.checkpoint_every": 2,
    "evaluation.prompts": 4,
    "evaluation.samples": 4,
    "evaluation.k": "[1, 4]",
    "telemetry.http_port": 0,
    "allocation.warmup.enabled": "false",
}


def hora(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The run, of name "loop" in `folder / "runs"`, when it has ended."""
    settings = {**SETTINGS, "run.folder": folder / "runs"}
    arguments = [part for key, value in settings.items() for part in ("-s", f"{key}={value}")]
    return subprocess.run(
        [str(Path(sys.executable).with_name("hora")), "run", "tiny", *arguments, *more],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1100,
        env={**os.environ, "COLUMNS": "120"},
    )
