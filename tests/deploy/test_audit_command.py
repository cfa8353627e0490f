"""`hora audit` says in a line what is wrong with a folder that holds no finished run."""

import subprocess
import sys
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


def test_a_rule_that_cannot_be_loaded_here_is_one_line_that_says_where_to_go(tmp_path: Path) -> None:
    run = tmp_path / "own"
    rule = "no_such_module_here:unsure"
    write_config(run, load("tiny", ["run.name=own", f"allocation.rule={rule}"]))
    RunFile(run).start("own", 1)
    RunFile(run).end("finished", "")
    (run / "groups.jsonl").write_text("")
    with RedisServer(run / "redis"):
        pass
    with pytest.raises(RunError, match=f"{rule}.* run `hora audit` in the folder") as error:
        audit_run(run)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "line", [b"\xff\xfe garbage", b"[" * 50_000, b"7", b"{}", b'{"step": ' + b"9" * 6_000 + b"}"]
)
def test_garbage_in_the_records_is_one_line_with_its_number(tmp_path: Path, line: bytes) -> None:
    run = tmp_path / "own"
    write_config(run, load("tiny", ["run.name=own"]))
    RunFile(run).start("own", 1)
    RunFile(run).end("finished", "")
    (run / "groups.jsonl").write_bytes(line + b"\n")
    with RedisServer(run / "redis"):
        pass
    with pytest.raises(RunError, match=r"groups\.jsonl:1: ") as error:
        audit_run(run)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.system
def test_the_command_finds_a_rule_of_the_folder_it_is_started_in(tmp_path: Path) -> None:
    rule = "def unsure(posterior, level):\n    return posterior.mean / (1 + level)\n"
    (tmp_path / "my_rule.py").write_text(rule)
    (tmp_path / "counts.jsonl").write_text(
        "".join(f'{{"id": {i}, "successes": {i % 9}, "trials": 8, "tokens": 80}}\n' for i in range(120))
    )
    hora = str(Path(sys.executable).with_name("hora"))
    command = [hora, "plan", "counts.jsonl", "--rules", "my_rule:unsure", "--group-size", "8"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "my_rule:unsure" in done.stdout
