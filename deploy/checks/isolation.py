"""Whether this machine can run programs in the sandbox, and with which layers."""

from __future__ import annotations

from collections.abc import Iterator

from hora_rl.actors.verifier.sandbox.sandbox import Sandbox
from hora_rl.deploy.checks.findings import Finding, Target, ok

HAVE = "Python's standard library, and no folder to write to"


def sandbox(target: Target) -> Iterator[Finding]:
    """The layers of the `code_tests` sandbox that work here. Raises SandboxError if they do not suffice."""
    if "code_tests" not in target.config.reward_names:
        return
    box = Sandbox()
    try:
        found = box.run("print(6 * 7)")
        where = "; the verifier's machines may differ" if target.on_cluster else ""
    finally:
        box.close()
    held = ", ".join(name for name, why in box.layers.items() if not why)
    missing = "; ".join(f"without {name}: {why}" for name, why in box.layers.items() if why)
    says = f"limits, no privileges, {held}" + (f"; {missing}" if missing else "") + where
    if found.out != b"42\n":
        why = found.err.decode(errors="replace").strip()[-200:] or f"exit status {found.status}"
        yield Finding("fail", "sandbox", f"a first program did not run: {why}", "see reward.code_tests")
        return
    yield ok("sandbox", f"{says}; programs have {HAVE}")
