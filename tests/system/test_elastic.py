"""A Ray cluster on free ports, the application by `serve deploy`, the learner beside it: parts come and go,
training does not notice.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from common.errors import RunError
from common.keys import Keys
from common.load import ROOT, from_args
from common.redis import connect
from deploy.launch.ports import free_port
from deploy.launch.redis_server import RedisServer
from deploy.launch.signals import GRACE_S
from deploy.monitor.run_state import read_run
from deploy.monitor.warnings import Kind
from deploy.runs.record import RunFile

BIN = Path(sys.executable).parent
STEPS = 5000  # more than any test waits for: each ends its run when it has seen enough

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1200)]


class Cluster:
    """One node of Ray with a Redis, and what is deployed on it. Every process is its own or a child's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.redis = folder, RedisServer(folder / "redis")
        self.gcs, self.dashboard, self.agent, self.http = (free_port() for _ in range(4))
        # Ray's own sockets lie in here: a short path.
        self.temporary = Path(tempfile.mkdtemp(prefix="hora-ray-"))
        self.learner: subprocess.Popen[bytes] | None = None
        self.first_version: dict[str, int] = {}  # of each generator, when it was first seen

    def start(self, cpus: int = 16) -> None:
        self.redis.start()
        self.env = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ADDRESS": f"127.0.0.1:{self.gcs}",
            "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{self.dashboard}",
            "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{self.dashboard}",
            "HORA_REDIS_URL": self.redis.url,
            "COLUMNS": "200",
        }
        command: list[str | Path] = [
            BIN / "ray",
            "start",
            "--head",
            "--block",
            f"--num-cpus={cpus}",
            "--disable-usage-stats",
        ]
        command += [f"--port={self.gcs}", f"--dashboard-port={self.dashboard}", "--dashboard-host=127.0.0.1"]
        command += [f"--dashboard-agent-listen-port={self.agent}", f"--temp-dir={self.temporary}"]
        command += ["--node-ip-address=127.0.0.1", f"--object-store-memory={256 * 2**20}"]
        env = {k: v for k, v in self.env.items() if k not in ("RAY_ADDRESS",)}
        with (self.folder / "ray.log").open("wb") as log:
            self.head = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def deploy(
        self, transport: str = "file", generator_cpus: float = 0.5, **deployments: dict[str, Any]
    ) -> None:
        """`serve deploy` of deploy/hora.yaml at a small size, with these settings of its deployments."""
        file = yaml.safe_load((ROOT / "deploy" / "hora.yaml").read_text())
        file["http_options"]["port"] = self.http
        application = file["applications"][0]
        application["deployments"] = [{"name": name, **values} for name, values in deployments.items()]
        args = application["args"]
        args["run"] = {"name": "elastic", "folder": str(self.folder / "runs")}
        args["model"]["path"] = str(ROOT / args["model"]["path"])
        args["rollout"] |= {"prompts_per_batch": 8, "group_size": 6, "pre_rollouts": 2, "shards": 2}
        args["generator"] = {"cpus": generator_cpus}
        args["learner"] |= {"steps": STEPS, "checkpoint_every": 50}
        args["queue"], args["weights"] = {}, {"transport": transport}
        self.config = from_args(args)
        path = self.folder / "hora.yaml"
        path.write_text(yaml.safe_dump(file, sort_keys=False))
        done = self._command("serve", "deploy", str(path))
        assert done.returncode == 0, done.stdout + done.stderr + (self.folder / "ray.log").read_text()

    def train(self, source: Path | None = None) -> None:
        with (self.folder / "train.log").open("wb") as log:
            self.learner = subprocess.Popen(
                [BIN / "hora", "train", str(source or self.folder / "hora.yaml")],
                env=self.env, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def stop_learner(self, how: signal.Signals | None = None) -> None:
        """By `how`; without, as a person does it from another terminal."""
        assert self.learner is not None
        resume = f"resume with: hora train {self.run}/config.yaml"
        if how is None:
            done = self._command("hora", "stop", str(self.run))
            assert resume in done.stdout, done.stdout + done.stderr
        else:
            self.learner.send_signal(how)
        assert self.learner.wait(GRACE_S) == 130
        assert resume in (self.folder / "train.log").read_text()
        assert RunFile(self.run).read().state == "stopped"

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "elastic"

    def state(self) -> Any:
        return read_run(connect(self.redis.url), "elastic")

    def alive(self, kind: str) -> list[Any]:
        try:
            parts = [p for p in self.state().of(kind) if p.silent_s < 5.0]
        except RunError:  # no coordinator has written to this Redis yet
            return []
        for part in parts if kind == "generator" else []:
            self.first_version.setdefault(part.name, part.state.get("version", 0))
        return parts

    def learner_rank(self) -> psutil.Process:
        """The process that trains. Equal to what it was before unless it was started again."""
        family = psutil.Process(self.head.pid).children(recursive=True)
        [rank] = [p for p in family if "RayTrainWorker" in " ".join(p.cmdline())]
        return rank

    def steps_more(self, n: int) -> None:
        at = self.state().step
        self.until(f"{n} steps after {at}", lambda: self.state().step >= at + n)

    def stands_still(self, seconds: float) -> bool:
        step = self.state().step
        time.sleep(seconds)
        return bool(self.state().step == step)

    def asked_again(self) -> list[str]:
        """What coordinators logged of requests that were lost with a replica."""
        logs = self.temporary.glob("session_*/logs/worker-*.err")
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        return [line for line in lines if "retry" in line and "attempt" in line]

    def pause(self, paused: bool) -> None:
        connect(self.redis.url).hset(Keys("elastic").state, "paused", str(int(paused)))

    def until(self, what: str, holds: Callable[[], bool], limit_s: float = 300.0) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            log = self.folder / "train.log"
            said = log.read_text(errors="replace")[-1500:] if log.exists() else ""
            assert time.monotonic() < deadline, f"{what}: {self._parts()}\n{said}"
            assert self.learner is None or self.learner.poll() is None, said
            time.sleep(0.5)

    def _parts(self) -> str:
        kinds = ("generator", "verifier", "coordinator", "learner")
        return " ".join(f"{kind} {len(self.alive(kind))}" for kind in kinds)

    def assert_exact(self) -> None:
        """So far: the audit judges a run that goes on by what it should have."""
        assert len((self.run / "groups.jsonl").read_text().splitlines()) >= 10 * 8
        done = self._command("hora", "audit", str(self.run))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "none missing, none doubled" in done.stdout

    def end(self) -> None:
        family = []
        for process in (self.learner, getattr(self, "head", None)):
            if process is not None and process.poll() is None:
                family += psutil.Process(process.pid).children(recursive=True)
                process.terminate()
                process.wait(60)
        _, alive = psutil.wait_procs(family, timeout=20)
        for left in alive:  # Ray's own processes, when the node was ended in the middle of a start
            left.kill()
        self.redis.stop()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        for _ in range(30):  # the dashboard listens a while after `ray start`
            done = subprocess.run(
                [BIN / words[0], *words[1:]], env=self.env, capture_output=True, text=True, timeout=120
            )
            if done.returncode == 0:
                return done
            time.sleep(2)
        return done  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_generators_verifiers_and_coordinators_scale_up_and_down_during_training(cluster: Cluster) -> None:
    one, two, three = ({"num_replicas": n} for n in (1, 2, 3))
    cluster.deploy(generator=one, verifier=one, coordinator=one)
    cluster.until("a generator", lambda: len(cluster.alive("generator")) == 1)
    cluster.train()
    cluster.until("steps", lambda: cluster.state().step >= 5)
    learner, [oldest] = cluster.learner_rank(), cluster.alive("generator")

    version = cluster.state().version
    cluster.deploy(generator=three, verifier=two, coordinator=two)
    cluster.until("three generators", lambda: len(cluster.alive("generator")) == 3)
    cluster.until("two verifiers", lambda: len(cluster.alive("verifier")) == 2)
    cluster.until("two coordinators", lambda: len(cluster.alive("coordinator")) == 2)
    # A replica's first sign of life comes after it has loaded the newest weights.
    late = {name: v for name, v in cluster.first_version.items() if name != oldest.name}
    assert len(late) == 2
    assert min(late.values()) >= version > 0
    cluster.steps_more(5)

    cluster.deploy(generator=one, verifier=one, coordinator=one)
    kinds = ("generator", "verifier", "coordinator")
    cluster.until("one of each", lambda: all(len(cluster.alive(kind)) == 1 for kind in kinds))
    cluster.steps_more(5)
    assert cluster.learner_rank() == learner
    # Who left had answered what it was asked: nobody had to ask again.
    assert cluster.asked_again() == []
    cluster.assert_exact()

    cluster.stop_learner()
    cluster.train(cluster.run / "config.yaml")
    cluster.steps_more(5)
    cluster.assert_exact()


def test_a_replica_without_a_place_is_told_and_sigterm_stops_the_learner(tmp_path: Path) -> None:
    """Two CPUs hold one replica of half a CPU beside the learner, or two as deploy/hora.yaml has them."""
    small = Cluster(tmp_path)
    try:
        small.start(cpus=2)
        small.deploy(generator={"num_replicas": 1})
        small.until("a generator", lambda: len(small.alive("generator")) == 1)
        small.train()
        small.until("steps", lambda: small.state().step >= 2)
        small.deploy(generator={"num_replicas": 2})
        small.until("the warning", lambda: small.state().warns(Kind.UNPLACED), 60)
        shown = small._command("hora", "monitor", str(small.run), "--once").stdout
        assert "no place for 1 of 2 generator: 2.5 CPUs are reserved" in " ".join(shown.split())
        small.deploy(generator={"num_replicas": 1})
        small.until("no warning", lambda: not small.state().warns(Kind.UNPLACED), 120)
        small.stop_learner(signal.SIGTERM)

        refused = small.folder / "too-many.yaml"
        file = yaml.safe_load((small.folder / "hora.yaml").read_text())
        file["applications"][0]["deployments"][0]["num_replicas"] = 2
        refused.write_text(yaml.safe_dump(file))
        for command in ("check", "train"):
            asked = [BIN / "hora", command, str(refused)]
            done = subprocess.run(asked, env=small.env, capture_output=True, text=True, timeout=120)
            assert done.returncode == 1
            assert "the cluster has 2, the configuration reserves 2.5" in done.stderr
        args = file["applications"][0]["args"]
        args["generator"]["cpus"] = yaml.safe_load((ROOT / "deploy/hora.yaml").read_text())["applications"][
            0
        ]["args"]["generator"]["cpus"]
        refused.write_text(yaml.safe_dump(file))
        assert small._command("hora", "check", str(refused)).returncode == 0
    finally:
        small.end()


def test_another_run_is_refused_beside_one_that_trains(cluster: Cluster) -> None:
    """Its application would take the generators from the learner. The run that trains notices nothing."""
    cluster.deploy(generator={"num_replicas": 1})
    cluster.until("a generator", lambda: len(cluster.alive("generator")) == 1)
    cluster.train()
    cluster.until("steps", lambda: cluster.state().step >= 2)
    parts = {p.name for kind in ("generator", "coordinator") for p in cluster.alive(kind)}

    file = yaml.safe_load((cluster.folder / "hora.yaml").read_text())
    file["applications"][0]["args"]["run"]["name"] = "second"
    second = cluster.folder / "second.yaml"
    second.write_text(yaml.safe_dump(file))
    refusal = "run 'elastic' trains on this Ray cluster"
    assert cluster._command("serve", "deploy", str(second)).returncode == 0, "Serve judges it later"
    cluster.until("the refusal", lambda: refusal in cluster._command("serve", "status").stdout, 120)
    asked = [BIN / "hora", "train", str(second)]
    done = subprocess.run(asked, env=cluster.env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert refusal in done.stderr

    cluster.steps_more(3)
    assert {p.name for kind in ("generator", "coordinator") for p in cluster.alive(kind)} == parts
    cluster.stop_learner()
    cluster.learner = None
    assert cluster._command("serve", "deploy", str(second)).returncode == 0
    begun = Keys("second").config
    cluster.until("the second's coordinator", lambda: connect(cluster.redis.url).exists(begun) == 1)


def test_a_served_generator_whose_engine_stands_still_is_replaced_and_not_drained(cluster: Cluster) -> None:
    cluster.deploy(generator={"num_replicas": 1})
    cluster.until("a generator", lambda: len(cluster.alive("generator")) == 1)
    cluster.train()
    cluster.until("steps", lambda: cluster.state().step >= 5)
    [victim] = cluster.alive("generator")
    [engine] = [
        p for p in psutil.Process(victim.state["pid"]).children() if "VLLM::" in " ".join(p.cmdline())
    ]
    engine.suspend()
    began = time.monotonic()

    def replaced() -> bool:
        names = [p.name for p in cluster.alive("generator")]
        return len(names) == 1 and names != [victim.name]

    cluster.until("another in its place", replaced)
    print(f"engine: stopped, another replica after {time.monotonic() - began:.0f} s")
    assert not engine.is_running()
    cluster.steps_more(5)
    assert cluster.asked_again(), "what it had been asked was asked again"
    cluster.assert_exact()


def test_serve_scales_the_generators_with_the_requests_in_flight(cluster: Cluster) -> None:
    scaling = {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 5,
        "metrics_interval_s": 1,
        "look_back_period_s": 3,
    }
    cluster.deploy(generator={"autoscaling_config": scaling})
    cluster.train()
    cluster.until("a second generator", lambda: len(cluster.alive("generator")) == 2)
    cluster.steps_more(5)
    cluster.pause(True)
    cluster.until("one generator again", lambda: len(cluster.alive("generator")) == 1)
    cluster.pause(False)
    cluster.steps_more(5)
    cluster.assert_exact()


def test_a_transfer_group_is_formed_anew_when_replicas_come_die_and_go(cluster: Cluster) -> None:
    def newest_on(replicas: int) -> bool:
        held = [p.state.get("version", 0) for p in cluster.alive("generator")]
        return len(held) == replicas and min(held) >= cluster.state().version - 1 > 0

    one, two = {"num_replicas": 1}, {"num_replicas": 2}
    cluster.deploy("gloo", generator=one)
    cluster.until("a generator", lambda: len(cluster.alive("generator")) == 1)
    cluster.train()
    cluster.until("steps", lambda: cluster.state().step >= 5)
    learner = cluster.learner_rank()

    cluster.deploy("gloo", generator=two)
    cluster.until("two replicas on new weights", lambda: newest_on(2))
    cluster.steps_more(5)

    # While nothing is asked for no step is made and no version published: who comes now must be sent the last
    # one again.
    cluster.pause(True)
    cluster.until("a learner that waits", lambda: cluster.stands_still(20.0))
    version, victim = cluster.state().version, cluster.alive("generator")[0]
    os.kill(victim.state["pid"], signal.SIGKILL)
    cluster.until(
        "the dead replica's silence", lambda: victim.name not in {p.name for p in cluster.alive("generator")}
    )
    cluster.until("its successor on the newest weights", lambda: newest_on(2))
    assert cluster.state().version == version
    cluster.pause(False)
    cluster.steps_more(5)

    cluster.deploy("gloo", generator=one)
    cluster.until("one replica", lambda: len(cluster.alive("generator")) == 1)
    cluster.steps_more(5)
    assert cluster.learner_rank() == learner
    cluster.assert_exact()
