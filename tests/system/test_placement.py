"""Where ranks are placed: with the environment that the documentation asks for, a cluster of several nodes
gives them cards of one node; ranks that find no place end the run after a limit, and not never.

Ray's nodes are real processes here, their GPUs are only numbers.
"""

import json
import re
import sys
import time
from pathlib import Path

import pytest

from hora_rl.common.load import ROOT
from tests.support.programs import run_well

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
SWITCHES = ("RAY_SERVE_USE_PACK_SCHEDULING_STRATEGY", "RAY_SERVE_NODE_COMPACTION_DELAY_S")

CLUSTER = """
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
print("said:", json.dumps([nodes, list(placement_group_table(ranks)["bundles_to_node_id"].values())]))
serve.shutdown()
ray.shutdown()
cluster.shutdown()
"""


LONELY = """
import sys, ray
from hora_rl.common.errors import RunError
from hora_rl.common.load import load
from hora_rl.learner import launch

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
try:
    launch.run(load("tiny", ["learner.workers=2"]), *sys.argv[1:])
except RunError as error:
    print(f"said: {error}")
"""


def said_by(code: str, *words: str) -> str:
    """What the program prints after "said: ", once."""
    out = run_well(sys.executable, "-c", code, *words, limit_s=280).stdout
    [line] = [line for line in out.splitlines() if line.startswith("said: ")]
    return line.removeprefix("said: ")


def test_generators_fill_one_machine_and_ranks_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "how-to" / "run-on-several-machines.md").read_text()
    exported = dict(re.findall(r"export (\w+)=(\S+)", page))
    for name in SWITCHES:
        monkeypatch.setenv(name, exported[name])
    generators, ranks = json.loads(said_by(CLUSTER))
    assert len(generators) == len(ranks) == 4
    assert len(set(generators)) == 1
    assert len(set(ranks)) == 1
    assert set(generators).isdisjoint(ranks)


def test_ranks_that_find_no_place_end_the_run_with_both_numbers(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "2")
    began = time.monotonic()
    said = said_by(LONELY, redis_url, str(tmp_path))
    assert "learner.workers = 2 need a CPU each" in said
    assert "1 CPUs and 0 GPUs are free" in said
    print(f"after {time.monotonic() - began:.0f} s: {said}")
