"""What starts a run loads no library that only its parts need: the first seconds and 200 MiB of a machine."""

import subprocess
import sys

import pytest


@pytest.mark.system
@pytest.mark.parametrize("module", ["hora_rl.deploy.app", "hora_rl.deploy.launch.local"])
def test_building_the_application_and_starting_a_run_load_no_model_library(module: str) -> None:
    """Only the checks and the parts load them, when they look at a model."""
    heavy = "{'torch', 'transformers', 'vllm', 'deepspeed'}"
    code = f"import sys, {module}; sys.exit(str(found) if (found := {heavy} & set(sys.modules)) else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
