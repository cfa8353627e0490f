"""What starts a run loads no library that only its parts need: the first seconds and 200 MiB of a machine."""

import pytest

from benchmarks.start import imported

HEAVY = {"torch", "transformers", "vllm", "deepspeed"}


@pytest.mark.system
@pytest.mark.parametrize("modules", ["hora_rl.deploy.app", "hora_rl.deploy.launch.local"])
def test_building_the_application_and_starting_a_run_load_no_model_library(modules: str) -> None:
    """Only the checks and the parts load them, when they look at a model."""
    assert not HEAVY & set(imported(modules).large)
