"""The how-to for several machines as its reader does it, on two machines with a network between them.

The machines are namespaces of this one (`tests.support.machines`); files are shared, as on a cluster with a
shared disk. Addresses, ports and commands are the page's. Only the folder /shared is another one, and Ray may
take longer to start. Needs root.
"""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect
from hora_rl.common.load import ROOT
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import Part
from tests.support.machines import Machine, private_network, why_not
from tests.support.pages import blocks
from tests.support.ports import until
from tests.system.conftest import runs

PAGE = "docs/how-to/run-on-several-machines.md"
STEPS = 5000  # more than the test waits for
REASON = why_not()

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(3600)]
pytestmark += [pytest.mark.skipif(REASON is not None, reason=str(REASON))]


class Cluster:
    """The head, the other machine, and what the page says to do on them."""

    def __init__(self, head: Machine, other: Machine, shared: Path) -> None:
        self.head, self.other, self.shared = head, other, shared
        texts = [b.text.replace("/shared", str(shared)) for b in blocks(PAGE) if b.kind == "sh"]
        [self.token, self.redis, self.password, self.environment] = texts[:4]
        [self.start_head, self.start_other, self.train, self.deploy, self.shutdown, self.stop_ray] = texts[4:]
        self.learner: psutil.Process | None = None
        self.server: psutil.Process | None = None

    def do(self, machine: Machine, block: str) -> str:
        """What `block` prints there, in the page's environment."""
        done = machine.run(self.environment + block, 300.0)
        assert done.returncode == 0, (block, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout

    def start_redis(self) -> None:
        self.server = self.head.begin(self.redis.strip(), "redis.log")
        until(lambda: "export HORA_REDIS_URL=" in self.head.said("redis.log"), limit_s=60)
        self.head.run(self.password)

    def start_training(self) -> None:
        """The page's last command of its block, in the background."""
        lines = self.environment.replace("export ", "").split("\n")
        settings = " ".join(line for line in lines if line)
        command = self.train.splitlines()[-1]
        assert command.startswith("hora train ")
        self.learner = self.head.begin(f"env {settings} {command}", "train.log")

    def state(self) -> Any:
        url = f"unix://{self.head.folder}/home/hora-redis/redis.sock?password_file={self.shared}/password"
        return read_run(connect(url), "two")

    def step(self) -> int:
        try:
            return int(self.state().step)
        except RunError:  # no coordinator has written to this Redis yet
            return 0

    def generators(self) -> list[Part]:
        try:
            return [p for p in self.state().of("generator") if p.silent_s < 10.0]
        except RunError:
            return []

    def on(self, machine: Machine) -> list[Part]:
        return [p for p in self.generators() if p.state["host"] == machine.name]

    def are_up_to_date(self, replicas: int) -> bool:
        held = [p.state.get("version", 0) for p in self.generators()]
        return len(held) == replicas and min(held) >= self.state().version - 1 > 0

    def until(self, what: str, holds: Callable[[], bool], limit_s: float = 600.0) -> None:
        def said() -> str:
            shown = [(p.name, p.state["host"], p.state.get("version")) for p in self.generators()]
            return f"{what}\n{shown}\n{self.head.said('train.log')[-3000:] if self.learner else ''}"

        def holds_while_alive() -> bool:
            assert self.learner is None or runs(self.learner), said()
            return holds()

        until(holds_while_alive, said, limit_s, every_s=0.5)

    def steps_more(self, n: int) -> None:
        at = self.step()
        self.until(f"{n} steps after {at}", lambda: self.step() >= at + n)

    def interrupt_training(self) -> None:
        assert self.learner is not None
        self.learner.send_signal(signal.SIGINT)
        self.learner, learner = None, self.learner
        until(lambda: not runs(learner), limit_s=120)
        assert f"resume with: hora train {self.shared}/runs/two/config.yaml" in self.head.said("train.log")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    patient = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "300"}
    shared = tmp_path / "shared"
    shared.mkdir()
    with private_network(tmp_path, ("head", "other"), **patient) as (head, other):
        yield Cluster(head, other, shared)
        family = head.processes() + other.processes()
    assert not [p for p in family if p.is_running()]


def write_configuration(cluster: Cluster, generators: int) -> None:
    """The page's first section, at a small size."""
    file = yaml.safe_load((ROOT / "deploy" / "hora.yaml").read_text())
    [application] = file["applications"]
    [generator] = [d for d in application["deployments"] if d["name"] == "generator"]
    generator |= {"num_replicas": generators, "max_replicas_per_node": 2}  # so three need both machines
    args = application["args"]
    args["run"] = {"name": "two", "folder": str(cluster.shared / "runs")}
    args["model"]["path"] = str(ROOT / args["model"]["path"])
    args["rollout"] |= {"prompts_per_batch": 8, "group_size": 6, "pre_rollouts": 2, "shards": 2}
    args["learner"] |= {"steps": STEPS, "checkpoint_every": 3}
    args["weights"] = {"transport": "gloo"}
    (cluster.head.folder / "home" / "my-cluster.yaml").write_text(yaml.safe_dump(file, sort_keys=False))


def start(cluster: Cluster) -> None:
    head, other = cluster.head, cluster.other
    head.run(cluster.token)
    (other.folder / "home" / ".ray").mkdir(mode=0o700)
    shutil.copy(head.folder / "home/.ray/auth_token", other.folder / "home/.ray/auth_token")
    cluster.start_redis()
    cluster.do(head, cluster.start_head)
    cluster.do(other, cluster.start_other)
    write_configuration(cluster, generators=1)
    check, deploy, _ = cluster.train.splitlines()
    cluster.do(head, check)
    cluster.do(head, deploy)
    cluster.start_training()


def lose(machine: Machine) -> None:
    """As when the power fails, for Ray: its node there is gone without a word."""
    raylets = [p for p in machine.processes() if p.name() == "raylet"]
    assert raylets
    for raylet in raylets:
        raylet.kill()


def test_two_machines_train_scale_survive_a_loss_resume_and_stop_as_the_page_says(cluster: Cluster) -> None:
    head, other = cluster.head, cluster.other
    start(cluster)
    cluster.until("steps", lambda: cluster.step() >= 3)

    write_configuration(cluster, generators=3)
    cluster.do(head, cluster.deploy)
    cluster.until("three generators on new weights", lambda: cluster.are_up_to_date(3))
    assert cluster.on(head)
    assert cluster.on(other)
    cluster.steps_more(3)

    lost = {p.name for p in cluster.on(other)}
    lose(other)
    cluster.until(
        "two generators on the head", lambda: len(cluster.on(head)) == 2 == len(cluster.generators())
    )
    assert not lost & {p.name for p in cluster.generators()}
    cluster.steps_more(3)
    cluster.until("new weights on both", lambda: cluster.are_up_to_date(2))

    cluster.interrupt_training()
    done = cluster.step()
    cluster.do(other, cluster.stop_ray + cluster.start_other)
    cluster.start_training()
    cluster.until("a learner that resumes", lambda: cluster.step() >= done + 3)
    cluster.until("the third on the machine that is back", lambda: len(cluster.on(other)) >= 1)
    cluster.interrupt_training()
    assert "none missing, none doubled" in cluster.do(head, f"hora audit {cluster.shared}/runs/two")

    cluster.do(head, cluster.shutdown)
    for machine in (head, other):
        cluster.do(machine, cluster.stop_ray)
    assert cluster.server is not None
    cluster.server.send_signal(signal.SIGINT)
    until(lambda: not [p for p in head.processes() + other.processes() if runs(p)], limit_s=120, every_s=0.5)
    assert (cluster.shared / "runs" / "two" / "steps.jsonl").read_bytes().count(b"\n") >= done + 3
