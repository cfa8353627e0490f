"""Findings of single checks."""

from collections.abc import Callable, Iterator

from hora_rl.common.config import Config
from hora_rl.deploy.checks.findings import Check, Finding, Target
from hora_rl.deploy.checks.run_checks import examine

Make = Callable[..., Config]


H200 = "H200, 143771 MiB"


def by_name(findings: Iterator[Finding] | list[Finding]) -> dict[str, Finding]:
    return {f.what: f for f in findings}


def one(check: Check, target: Target) -> dict[str, Finding]:
    """Findings of a single check by what they are about."""
    return by_name(examine(target, [check]))
