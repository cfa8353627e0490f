"""The list of checks behind `hora check`, `run`, `train` and `eval`.

`check --all` shows every finding; the other commands stop at the first failure."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from hora_rl.common.console import say, working
from hora_rl.common.errors import ConfigError, HoraError
from hora_rl.common.files import read_yaml
from hora_rl.common.load import load
from hora_rl.common.model.pretrained import obtain
from hora_rl.deploy.checks import configuration, hardware, machine, services, sources, task
from hora_rl.deploy.checks.engine import EngineProcess, engine
from hora_rl.deploy.checks.findings import Check, Finding, Target
from hora_rl.deploy.checks.memory import disk, memory, run_target
from hora_rl.deploy.checks.weight_files import weight_files

NAMES: tuple[Check, ...] = (configuration.model, configuration.names, configuration.context)
"""Fast checks for every machine."""
TASK: tuple[Check, ...] = (task.stops, sources.templates, task.task)
CONFIGURATION: tuple[Check, ...] = (
    *NAMES,
    configuration.family,
    weight_files,
    sources.data,
    configuration.evaluation,
    *TASK,
    configuration.group_size,
    memory,
    disk,
)
"""Checks of a configuration for another machine."""
CHECKS: tuple[Check, ...] = (
    machine.python,
    machine.folder,
    *NAMES,
    configuration.packages,
    configuration.family,
    weight_files,
    machine.versions,
    services.redis_server,
    hardware.driver,
    hardware.precision,
    hardware.triton_build,
    hardware.mps_daemon,
    machine.gpu_count,
    hardware.on_cpu,
    services.ray_token,
    services.ray_cluster,
    memory,
    machine.shared_memory,
    machine.limits,
    machine.sockets,
    machine.port,
    disk,
    task.sandbox,
    sources.data,
    configuration.evaluation,
    *TASK,
    configuration.group_size,
    engine,
)
SHOWN_BY_RUN = ("evaluation", "disk", "resources")
SHOWN_BY_CHECK = (
    *SHOWN_BY_RUN, "layout", "stop tokens", "chat template", "prompt", "right answer", "wrong answer",
    "solutions", "GPU driver", "MPS", "sandbox", "threads", "model.dtype", "memory per part", "allocation",
)  # fmt: skip
MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}


def examine(target: Target, checks: Sequence[Check] | None = None) -> Iterator[Finding]:
    """Run `checks` (default: all) and yield their findings in order; what stops several of them once."""
    checks = CHECKS if checks is None else checks
    obtain(target.config.model.path)
    stopped: set[str] = set()
    with ExitStack() as held, working("checking", len(checks)) as begin:
        if engine in checks and not target.on_cluster:  # it answers while the other checks run
            process = held.enter_context(EngineProcess(target))
            checks = [process.engine if check is engine else check for check in checks]
        for check in checks:
            name = check.__name__.replace("_", " ")
            begin(name)
            try:
                yield from check(target)
            except HoraError as error:
                if str(error) not in stopped:
                    yield Finding("fail", name, str(error))
                stopped.add(str(error))


def require(target: Target, console: Console, checks: Sequence[Check] | None = None) -> list[Finding]:
    """Run the checks and print their warnings. Raises ConfigError at the first failure."""
    findings: list[Finding] = []
    try:
        for finding in examine(target, checks):
            if finding.level == "fail":
                raise ConfigError(finding.line)
            findings.append(finding)
    finally:
        for finding in (f for f in findings if f.level == "warn"):
            say(console, f"warning: {finding.line}")
    return findings


def show(findings: Sequence[Finding], names: Sequence[str], console: Console) -> None:
    for finding in (f for f in findings if f.level == "ok" and f.what in names):
        say(console, f"{finding.what}: {finding.says}")


def check(source: str, overrides: Sequence[str], *, elsewhere: bool = False) -> None:
    """Print what a run of this configuration would use. Raises ConfigError at the first failure. `elsewhere`
    skips the checks of this machine and its servers."""
    console = Console()
    target = target_of(source, overrides)
    if elsewhere:
        target = replace(target, command="elsewhere")
    findings = require(target, console, CONFIGURATION if elsewhere else None)
    config, rollout = target.config, target.config.rollout
    prompts = next(f.says for f in findings if f.what == "data" and f.level == "ok")
    say(
        console,
        f"{source}: valid. {prompts}; {config.learner.steps} steps of Γ·G = "
        f"{rollout.prompts_per_batch}·{rollout.group_size} = "
        f"{rollout.batch_size} rollouts, rule {config.allocation.rule}.",
    )
    show(findings, SHOWN_BY_CHECK, console)


def check_all(source: str, overrides: Sequence[str]) -> bool:
    """`hora check --all`: print every finding with its remedy. Returns whether a run could start."""
    console, findings = Console(), list(examine(target_of(source, overrides)))
    for finding in findings:
        mark, colour = MARKS[finding.level]
        console.print(f"[{colour}]{mark:>4}[/]", end="  ")
        say(console, f"{finding.what}: {finding.says}")
        if finding.fix:
            say(console, f"      fix: {finding.fix}")
    failed = sum(f.level == "fail" for f in findings)
    warned = sum(f.level == "warn" for f in findings)
    verdict = f"{failed} would stop a run" if failed else "a run would come up"
    console.print(f"{verdict}; {warned} to look at" if warned else verdict)
    return not failed


def target_of(source: str, overrides: Sequence[str] = (), *, trained: bool = False) -> Target:
    """The target of `source`. A Serve file targets a cluster, with its replicas and address. Other sources
    target `hora run`, or `hora train` if `trained`. Raises ConfigError for options that Serve refuses."""
    config = load(source, overrides)
    raw = read_yaml(Path(source), source) if Path(source).is_file() else {}
    if "applications" not in raw:
        return Target(config, "train") if trained else run_target(config)
    from ray.serve.schema import HTTPOptionsSchema

    try:
        options = HTTPOptionsSchema.model_validate(raw.get("http_options") or {})
    except ValidationError as error:
        raise ConfigError(f"{source}: http_options: {error.errors()[0]['msg']}") from None
    sections = {}  # `deployments:` overrides the replicas in the arguments
    for deployment in raw["applications"][0].get("deployments") or []:
        name, replicas = deployment.get("name"), deployment.get("num_replicas")
        if name in config.deployments and isinstance(replicas, int):
            sections[name] = getattr(config, name).model_copy(update={"replicas": replicas})
    return Target(config.model_copy(update=sections), "train", (options.host, options.port))
