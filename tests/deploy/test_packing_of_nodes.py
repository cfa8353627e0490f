"""Where Ray Serve's own packing puts the replicas of the 64-GPU file, and what it leaves for the learner."""

from pathlib import Path

import pytest
from ray.serve._private.deployment_scheduler import (
    AvailableNodeResources,
    DeploymentScheduler,
    RequestedResources,
)

from hora_rl.common.load import load

FILE = Path(__file__).parents[2] / "deploy" / "hora-64gpu.yaml"


def packed(cpus: int) -> list[AvailableNodeResources]:
    """What is free on eight machines of eight GPUs and so many CPUs once everything that Serve runs is
    placed, as `_schedule_with_pack_strategy` does it: the largest first, on the fullest node that fits."""
    config = load(str(FILE))
    scheduler = DeploymentScheduler(None, "head", lambda *_: None)
    free = {str(i): AvailableNodeResources(CPU=cpus, GPU=8) for i in range(8)}
    requests = [
        RequestedResources(CPU=getattr(config, name).cpus, GPU=config.generator.gpus * (name == "generator"))
        for name in config.deployments
        for _ in range(getattr(config, name).replicas)
    ]
    placed: dict[str, set[str]] = {}
    for request in sorted(requests, reverse=True):
        node = scheduler._find_best_fit_node_for_pack(request, free, placed)
        assert node is not None
        free[node] -= request
        placed.setdefault(node, set()).add(str(len(placed)))
    return list(free.values())


def ranks_that_fit(free: list[AvailableNodeResources]) -> int:
    """Of the learner, a GPU and a CPU each."""
    return sum(int(min(node.get("GPU"), node.get("CPU"))) for node in free)


@pytest.mark.parametrize("cpus", [64, 96, 192])
def test_generators_fill_two_machines_and_the_learner_has_six_to_itself(cpus: int) -> None:
    free = packed(cpus)
    assert sorted(node.get("GPU") for node in free) == [0] * 2 + [8] * 6
    assert ranks_that_fit(free) == load(str(FILE)).learner.workers == 48
