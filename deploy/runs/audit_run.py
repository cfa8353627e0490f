"""`hora audit RUN`: audit the records of a live or finished run."""

from contextlib import ExitStack
from pathlib import Path

from hora_rl.allocator.rules import get_rule
from hora_rl.common.console import working
from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.deploy.machine.record import RunFile
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.machine.run_redis import redis_url
from hora_rl.evaluation.audit import audit, rollout_rows
from hora_rl.evaluation.audit_records import gather
from hora_rl.evaluation.run_folders import records


def audit_run(run: Path) -> bool:
    """Print all findings. Returns whether there are none.

    For an ended `hora run`, start its embedded Redis during the audit; for `hora train`, its Redis must be
    up. Raises HoraError if the folder has no run or no trained group, or no Redis is configured.
    """
    record, groups = RunFile(run).read(), run / "groups.jsonl"
    if not groups.exists():
        raise RunError(f"{groups}: no such file; a run writes it from its first step on")
    with ExitStack() as exits:
        begin = exits.enter_context(working("audit", 2))
        begin("opening the run's Redis")
        config = load(str(run / "config.yaml"))
        if not (run / "redis").exists():  # a run of `hora train`
            url = redis_url(config.queue)
        elif record.alive:
            url = RunFile(run).redis_url()
        else:
            url = exits.enter_context(RedisServer(run / "redis")).url
        _load_rule(config.allocation.rule)
        begin("comparing records, ledger and stream")
        facts = gather(connect(url), record.run, lambda: records(groups))
        violations = audit(config, facts) + rollout_rows(facts, run)
    order = (
        "prompts in order" if facts.prompts else "order of prompts unknown (the run did not note how many)"
    )
    print(
        "\n".join(violations)
        or f"{record.run}: {len(facts.records)} groups, none missing, none doubled, budgets and bounds "
        f"held, {order}"
    )
    return not violations


def _load_rule(rule: str) -> None:
    """Load the rule to recompute allocations. Raises RunError if that fails."""
    try:
        get_rule(rule)
    except ValueError as error:
        raise RunError(
            f"{str(error).removeprefix('rule: ')}: the audit divides by it again; run `hora audit` in the "
            "folder that the run was started in"
        ) from None
