"""`hora audit` says in a line what is wrong with a folder that holds no finished run."""

from pathlib import Path

import pytest

from hora_rl.common.errors import RunError
from hora_rl.common.load import load
from hora_rl.deploy.machine.record import RunFile, write_config
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.deploy.runs.audit_run import audit_run


def test_a_folder_without_a_run_or_without_steps_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run here"):
        audit_run(tmp_path)
    RunFile(tmp_path).start("r", 1)
    with pytest.raises(RunError, match=r"groups\.jsonl: no such file"):
        audit_run(tmp_path)


def refused(run: Path, records: bytes, *settings: str) -> str:
    """The line for an ended run with these records of groups."""
    write_config(run, load("tiny", ["run.name=own", *settings]))
    RunFile(run).start("own", 1)
    RunFile(run).end("finished", "")
    (run / "groups.jsonl").write_bytes(records)
    with RedisServer(run / "redis"):
        pass
    with pytest.raises(RunError) as error:
        audit_run(run)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_rule_that_cannot_be_loaded_here_is_one_line_that_says_where_to_go(tmp_path: Path) -> None:
    rule = "no_such_module_here:unsure"
    line = refused(tmp_path, b"", f"allocation.rule={rule}")
    assert rule in line
    assert "run `hora audit` in the folder" in line


@pytest.mark.parametrize(
    "line", [b"\xff\xfe garbage", b"[" * 50_000, b"7", b"{}", b'{"step": ' + b"9" * 6_000 + b"}"]
)
def test_garbage_in_the_records_is_one_line_with_its_number(tmp_path: Path, line: bytes) -> None:
    found = refused(tmp_path, line + b"\n")
    assert "groups.jsonl:1: " in found
    assert len(found) < 300
