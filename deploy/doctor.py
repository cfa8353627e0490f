"""`hora doctor`: what of this machine, or of the cluster it belongs to, would stop or slow a run, and how to mend it.

Every check looks at one thing and returns findings; none changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console

from common.config import Config
from deploy import doctor_machine as machine
from deploy import doctor_services as services
from deploy.findings import Finding
from deploy.progress import working

MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}
CHECKS: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    machine.python,
    machine.package_versions,
    machine.import_origin,
    machine.gpu_count,
    machine.memory,
    machine.shared_memory,
    machine.limits,
    machine.port,
    machine.disk,
    services.redis_server,
    services.model,
    services.ray_cluster,
)


def doctor(config: Config) -> list[Finding]:
    """All findings, in the order in which a run would meet them."""
    found: list[Finding] = []
    with working("examining", len(CHECKS)) as begin:
        for check in CHECKS:
            begin(check.__name__.replace("_", " "))
            found += check(config)
    return found


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
