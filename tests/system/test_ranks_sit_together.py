"""On a cluster of several nodes the learner's ranks get cards of one node, with the environment that the
documentation asks for. Ray's nodes are real processes here, their GPUs are only numbers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
SWITCHES = ("RAY_SERVE_USE_PACK_SCHEDULING_STRATEGY", "RAY_SERVE_NODE_COMPACTION_DELAY_S")

SCRIPT = """
import json, sys
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table

cluster = Cluster()
cluster.add_node(num_cpus=4, num_gpus=0, dashboard_host="127.0.0.1", include_dashboard=False)
for _ in range(2):
    cluster.add_node(num_cpus=8, num_gpus=4)
ray.init(address=cluster.address, log_to_driver=False)


@serve.deployment(name="generator", num_replicas=4, ray_actor_options={"num_gpus": 1, "num_cpus": 1})
class Generator:
    def node(self):
        return ray.get_runtime_context().get_node_id()


@serve.deployment(name="coordinator", ray_actor_options={"num_cpus": 1})
class Coordinator:
    def __init__(self, generators):
        self.generators = generators


serve.start(proxy_location="Disabled")
serve.run(Coordinator.bind(Generator.bind()), name="hora", route_prefix=None)
handle = serve.get_deployment_handle("generator", "hora")
nodes = handle.broadcast("node").results()
# as Ray Train places learner.workers = 4 ranks
ranks = placement_group([{"CPU": 1, "GPU": 1}] * 4, strategy="PACK")
ray.get(ranks.ready(), timeout=60)
print("found", json.dumps([nodes, list(placement_group_table(ranks)["bundles_to_node_id"].values())]))
serve.shutdown()
ray.shutdown()
cluster.shutdown()
"""


def environment() -> dict[str, str]:
    """What the page for several machines exports."""
    text = (ROOT / "docs" / "how-to" / "run-on-several-machines.md").read_text()
    found = dict(re.findall(r"export (\w+)=(\S+)", text))
    return {name: found[name] for name in SWITCHES}


def nodes(tmp_path: Path, env: dict[str, str]) -> tuple[list[str], list[str]]:
    """Nodes of four generators and of four ranks."""
    (tmp_path / "cluster.py").write_text(SCRIPT)
    clean = {name: value for name, value in os.environ.items() if name not in SWITCHES}
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "cluster.py")],
        env={**clean, **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    [line] = [line for line in ran.stdout.splitlines() if line.startswith("found")]
    generators, ranks = json.loads(line.removeprefix("found"))
    return generators, ranks


def test_generators_fill_one_machine_and_ranks_the_other(tmp_path: Path) -> None:
    generators, ranks = nodes(tmp_path, environment())
    assert len(generators) == len(ranks) == 4
    assert len(set(generators)) == 1
    assert len(set(ranks)) == 1
    assert set(generators).isdisjoint(ranks)
