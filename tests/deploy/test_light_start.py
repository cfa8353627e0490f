"""What starts a run loads no library that only its parts need: the first seconds and 200 MiB of a machine."""

import subprocess
import sys

import pytest

MODELS = {"torch", "transformers", "vllm", "deepspeed"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("hora_rl.deploy.cli", MODELS | {"ray", "redis"}),
        pytest.param("hora_rl.deploy.app", MODELS, marks=pytest.mark.system),
        pytest.param("hora_rl.deploy.launch.local", MODELS, marks=pytest.mark.system),
    ],
)
def test_commands_the_application_and_the_start_of_a_run_load_no_model_library(
    module: str, heavy: set[str]
) -> None:
    code = f"import sys, {module}; sys.exit(str(found) if (found := {heavy} & set(sys.modules)) else 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
