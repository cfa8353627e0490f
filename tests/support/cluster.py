"""A Ray cluster of one node on free ports, the application by `serve deploy`, and the learner beside it."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.load import ROOT, from_args
from hora_rl.deploy.machine.ray_start import free_port
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.machine.signals import GRACE_S
from hora_rl.deploy.monitor.reading import read_run
from tests.support.ports import until

BIN = Path(sys.executable).parent
STEPS = 5000  # more than any test waits for: most end their run when they have seen enough


class Cluster:
    """One node of Ray with a Redis, and what is deployed on it. Every process is its own or a child's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.redis = folder, RedisServer(folder / "redis")
        self.gcs, self.dashboard, self.agent, self.http = (free_port() for _ in range(4))
        # Ray's own sockets lie in here: a short path.
        self.temporary = Path(tempfile.mkdtemp(prefix="hora-ray-"))
        self.learner: subprocess.Popen[bytes] | None = None
        self.first_version: dict[str, int] = {}  # of each generator, when it was first seen

    def start(self, cpus: int = 16, gpus: int | None = None) -> None:
        """`gpus`: told to Ray, which else counts them."""
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
        command = [str(BIN / "ray"), "start", "--head", "--block", "--disable-usage-stats"]
        command += [f"--num-cpus={cpus}"]
        command += [] if gpus is None else [f"--num-gpus={gpus}"]
        command += [f"--port={self.gcs}", f"--dashboard-port={self.dashboard}", "--dashboard-host=127.0.0.1"]
        command += [f"--dashboard-agent-listen-port={self.agent}", f"--temp-dir={self.temporary}"]
        command += ["--node-ip-address=127.0.0.1", f"--object-store-memory={256 * 2**20}"]
        env = {k: v for k, v in self.env.items() if k not in ("RAY_ADDRESS",)}
        with (self.folder / "ray.log").open("wb") as log:
            self.head = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def deploy(
        self,
        transport: str = "file",
        sections: Mapping[str, dict[str, Any]] | None = None,
        **deployments: dict[str, Any],
    ) -> None:
        """`serve deploy` of deploy/hora.yaml at a small size, with these settings of its deployments and
        these keys of sections of its configuration."""
        file = yaml.safe_load((ROOT / "deploy" / "hora.yaml").read_text())
        file["http_options"]["port"] = self.http
        application = file["applications"][0]
        application["deployments"] = [{"name": name, **values} for name, values in deployments.items()]
        args = application["args"]
        args["run"] = {"name": "elastic", "folder": str(self.folder / "runs")}
        args["model"]["path"] = str(ROOT / args["model"]["path"])
        args["rollout"] |= {"prompts_per_batch": 8, "group_size": 6, "pre_rollouts": 2, "shards": 2}
        args["generator"] = {"cpus": 0.5}
        args["learner"] |= {"steps": STEPS, "checkpoint_every": 50}
        args["queue"], args["weights"] = {}, {"transport": transport}
        for section, keys in (sections or {}).items():
            args[section] = {**args.get(section, {}), **keys}
        self.serve(file)

    def serve(self, file: dict[str, Any]) -> None:
        """`serve deploy` of this Serve file."""
        self.config = from_args(file["applications"][0]["args"])
        path = self.folder / "hora.yaml"
        path.write_text(yaml.safe_dump(file, sort_keys=False))
        done = self._command("serve", "deploy", str(path))
        assert done.returncode == 0, done.stdout + done.stderr + (self.folder / "ray.log").read_text()

    def shut_application(self) -> None:
        """End the replicas, which gives their cards back."""
        done = self._command("serve", "shutdown", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr

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
        def said() -> str:
            log = self.folder / "train.log"
            kinds = ("generator", "verifier", "coordinator", "learner")
            parts = " ".join(f"{kind} {len(self.alive(kind))}" for kind in kinds)
            return f"{what}: {parts}\n{log.read_text(errors='replace')[-1500:] if log.exists() else ''}"

        until(holds, said, limit_s, 0.5, self.learner)

    def until_alive(self, **counts: int) -> None:
        """Wait for so many parts of these kinds: `generator=2`."""
        self.until(f"{counts}", lambda: all(len(self.alive(kind)) == n for kind, n in counts.items()))

    def until_trained(self, steps: int, transport: str = "file", **deployments: dict[str, Any]) -> None:
        """Train with one generator until these steps are there."""
        self.deploy(transport, **{"generator": {"num_replicas": 1}, **deployments})
        self.until_alive(generator=1)
        self.train()
        self.until("steps", lambda: self.state().step >= steps)

    def assert_exact(self) -> None:
        """So far: the audit judges a run that goes on by what it should have."""
        assert len((self.run / "groups.jsonl").read_text().splitlines()) >= 10 * 8
        self.audit()

    def audit(self) -> None:
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

    def refusal(self, *words: str) -> str:
        """What `hora WORDS` says that ends with an error."""
        done = self._run("hora", *words)
        assert done.returncode == 1
        return done.stderr

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [BIN / words[0], *words[1:]]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=200)

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        for _ in range(30):  # the dashboard listens a while after `ray start`
            done = self._run(*words)
            if done.returncode == 0:
                return done
            time.sleep(2)
        return done  # fmt: skip
