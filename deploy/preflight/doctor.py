"""`hora doctor`: what of this machine, or of the cluster it belongs to, would stop or slow a run, and how to mend it.

Every check looks at one thing and returns findings; none changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError
from rich.console import Console

from common.config import Config
from common.errors import ConfigError
from deploy.monitor.progress import working
from deploy.preflight import machine, services
from deploy.preflight.findings import Finding

MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}
Check = Callable[[Config], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    machine.python,
    machine.package_versions,
    machine.import_origin,
    machine.gpu_count,
    machine.memory,
    machine.shared_memory,
    machine.limits,
    machine.port,
    machine.disk,
    machine.build_lock,
    services.redis_server,
    services.model,
    services.ray_cluster,
)


def doctor(config: Config, http: tuple[str, int] | None = None) -> list[Finding]:
    """All findings, in the order in which a run would meet them. `http`: where a Serve file says that Serve listens
    (`http_options`); none for what is no Serve file.
    """
    found: list[Finding] = []
    checks = CHECKS if http is None else _served(*http)
    with working("examining", len(checks)) as begin:
        for check in checks:
            begin(check.__name__.replace("_", " "))
            found += check(config)
    return found


def http_options(source: str) -> tuple[str, int] | None:
    """(host, port) of Serve in file `source`, its defaults included; None for an experiment or a preset.

    Raises ConfigError for options that Serve would refuse.
    """
    raw = yaml.safe_load(Path(source).read_text()) if Path(source).is_file() else {}
    if "applications" not in raw:
        return None
    from ray.serve.schema import HTTPOptionsSchema

    try:
        options = HTTPOptionsSchema.model_validate(raw.get("http_options") or {})
    except ValidationError as error:
        raise ConfigError(f"{source}: http_options: {error.errors()[0]['msg']}") from None
    return options.host, options.port


def _served(host: str, number: int) -> tuple[Check, ...]:
    """The checks of a Serve file: Ray places its replicas and ranks, and this machine need not hold them all."""

    def port(config: Config) -> Iterator[Finding]:
        return machine.served_port(host, number)

    instead: dict[Check, Check] = {machine.gpu_count: machine.placed_by_ray, machine.port: port}
    return tuple(instead.get(check, check) for check in CHECKS if check is not machine.memory)


def show(findings: list[Finding], console: Console | None = None) -> bool:
    """Print the report; whether a run would come up."""
    console = console or Console()
    for finding in findings:
        mark, colour = MARKS[finding.level]
        console.print(f"[{colour}]{mark:>4}[/]", end="  ")
        console.print(f"{finding.what}: {finding.says}", markup=False, highlight=False, soft_wrap=True)
        if finding.mend:
            console.print(f"      mend: {finding.mend}", markup=False, highlight=False, soft_wrap=True)
    failed = sum(f.level == "fail" for f in findings)
    warned = sum(f.level == "warn" for f in findings)
    verdict = f"{failed} would stop a run" if failed else "a run would come up"
    console.print(f"{verdict}; {warned} to look at" if warned else verdict)
    return not failed
