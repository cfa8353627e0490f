"""Read a live run from its Redis, and an ended one from the Redis files and checkpoints in its folder: to
watch it, to audit it (`hora audit`) and to export its model."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hora_rl.allocator.rules import get_rule
from hora_rl.common.config import TelemetryConfig
from hora_rl.common.console import working
from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect
from hora_rl.common.load import load
from hora_rl.deploy.machine.record import RunFile, RunRecord
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.machine.run_redis import configured, redis_of
from hora_rl.deploy.monitor.feed import Read
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import Kind, RunState, Warning


@dataclass(frozen=True, slots=True)
class Source:
    """Redis URL, name and reader of one run, its record, if any, and where its page listens."""

    url: str
    run: str
    read: Read
    file: RunFile
    telemetry: TelemetryConfig


@contextmanager
def source_of(source: str, overrides: Sequence[str] = ()) -> Iterator[Source]:
    """The run of a folder or a configuration. For an ended run, start Redis on a copy of its files, so that
    the folder does not change.

    Raises RunError if there is no run or it kept no data.
    """
    config = configured(source, overrides)
    telemetry = config.telemetry if config else TelemetryConfig()
    file = RunFile(Path(source) if Path(source).is_dir() or config is None else config.run.path)
    if not _kept(file):
        yield Source(*redis_of(source, overrides), read_run, file, telemetry)
        return
    record = file.read()
    with TemporaryDirectory(prefix="hora-") as copy, ExitStack() as serving:
        with working(f"reading {file.folder}"):
            files = shutil.ignore_patterns("redis.sock", "lock", "pid", "url", "redis.log")
            shutil.copytree(file.folder / "redis", Path(copy) / "redis", ignore=files)
            server = serving.enter_context(RedisServer(Path(copy) / "redis"))
        yield Source(server.url, record.run, partial(_as_it_was, record=record), file, telemetry)


def _kept(file: RunFile) -> bool:
    """Whether the run has ended and left files of an embedded Redis."""
    if not file.path.exists() or file.read().alive:
        return False
    return any((file.folder / "redis").glob("appendonly*"))


def _as_it_was(client: Any, run: str, record: RunRecord) -> RunState:
    state = read_run(client, run, now=record.ended or record.seen)
    if record.state == "finished":
        return state
    reason = record.reason or "ended without a word"
    return replace(
        state, status="stopped", error=reason, warnings=(Warning(Kind.STOPPED, f"stopped: {reason}"),)
    )


def export_run(run: Path, step: int | None, out: Path, *, adapter: bool = False) -> str:
    """Write the checkpoint of `step` (default: the newest) of the run in folder `run` to `out`. With
    `adapter`, write only the LoRA adapter. Returns a message."""
    file = run / "config.yaml"
    if not file.is_file():
        raise RunError(f"{run}: not a run folder, there is no config.yaml; `hora runs` lists runs")
    with working(f"export of {run}"):
        from hora_rl.learner.checkpoints.export import export_checkpoint

        done = export_checkpoint(run, load(str(file)), step, out, adapter=adapter)
    what = "adapter" if adapter else "model"
    return f"{out}: the {what} after step {done}; `hora eval {out} --config {file}` measures it"


def audit_run(run: Path) -> bool:
    """Print all findings. Returns whether there are none.

    The records of an ended `hora run` hold its Redis; that of `hora train` must be up. Raises HoraError if
    the folder has no run or no trained group, or no Redis is configured.
    """
    # pyarrow takes long to import, and `hora monitor` does not need it.
    from hora_rl.evaluation.audit import audit, rollout_rows
    from hora_rl.evaluation.audit_records import gather
    from hora_rl.evaluation.run_folders import records

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
