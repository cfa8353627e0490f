"""`hora audit RUN`: audit the records of a live or finished run."""

from pathlib import Path

from hora_rl.allocator.rules import get_rule
from hora_rl.common.console import working
from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.runs.ended_run import source_of
from hora_rl.evaluation.audit import audit, rollout_rows
from hora_rl.evaluation.audit_records import gather
from hora_rl.evaluation.run_folders import records


def audit_run(run: Path) -> bool:
    """Print all findings. Returns whether there are none.

    The records of an ended `hora run` hold its Redis; that of `hora train` must be up. Raises HoraError if
    the folder has no run or no trained group, or no Redis is configured.
    """
    RunFile(run).read()
    groups = run / "groups.jsonl"
    if not groups.exists():
        raise RunError(f"{groups}: no such file; a run writes it from its first step on")
    config = load(str(run / "config.yaml"))
    try:
        get_rule(config.allocation.rule)
    except ValueError as error:
        raise RunError(
            f"{str(error).removeprefix('rule: ')}: the audit divides by it again; run `hora audit` in the "
            "folder that the run was started in"
        ) from None
    with source_of(str(run)) as source, working("audit"):
        facts = gather(connect(source.url), source.run, lambda: records(groups))
        violations = audit(config, facts) + rollout_rows(facts, run)
    order = (
        "prompts in order" if facts.prompts else "order of prompts unknown (the run did not note how many)"
    )
    print(
        "\n".join(violations)
        or f"{source.run}: {len(facts.records)} groups, none missing, none doubled, budgets and bounds "
        f"held, {order}"
    )
    return not violations
