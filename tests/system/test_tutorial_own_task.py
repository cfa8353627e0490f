"""The tutorial "your own task" as a new user does it: its files and its commands, in a folder of their own.

What is changed, and why: ports are free ones and Ray's folder is a temporary one, because other tests and
runs use the usual ones; `source` and `mkdir` are what the test does itself; the comparison with GRPO takes
two steps; `ray start` is a job of the shell, because `ray stop` would end every Ray of the machine.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from hora_rl.deploy.machine.ports import free_port
from tests.support.pages import Block, blocks
from tests.support.programs import run_well

PAGE = "docs/tutorial/your-own-task.md"
BIN = Path(sys.executable).parent
ACTIVATE = "source .venv/bin/activate\nmkdir my-task\ncd my-task\n"
pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1500)]


def is_cluster(block: Block) -> bool:
    return any(word in block.text for word in ("RAY_AUTH_MODE", "my-cluster", "ray stop"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's folder with all files that the page says to save."""
    place = tmp_path_factory.mktemp("reader") / "my-task"
    place.mkdir()
    for block in blocks(PAGE):
        if block.file is not None:
            (place / block.file).write_text(block.text)
    files = {"make_problems.py", "my_reward.py", "my_rule.py", "my-task.yaml"}
    assert {p.name for p in place.iterdir()} == files
    return place


def shell(folder: Path, script: str, changes: dict[str, str], limit_s: float, **env: str) -> str:
    """What `script` prints after `changes`, each of which must apply; it stops at the first failure."""
    for old, new in changes.items():
        assert old in script, f"{old!r} is not in the page any more"
        script = script.replace(old, new)
    env |= {"PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "200"}
    return run_well("bash", "-euo", "pipefail", "-c", script, cwd=folder, limit_s=limit_s, **env).stdout


def end_processes_of(temporary: Path) -> None:
    """What is left of the Ray whose folder this is, where the script was cut off."""
    for process in psutil.process_iter(["cmdline"]):
        if any(str(temporary) in word for word in process.info["cmdline"] or ()):
            process.kill()


def test_the_reader_s_own_reward_rule_and_data_are_checked_trained_and_read(folder: Path) -> None:
    first, *rest = [b for b in blocks(PAGE) if b.kind == "sh" and not is_cluster(b)]
    assert first.text == ACTIVATE
    free = " -s telemetry.http_port=0"
    changes = {
        "hora run my-task.yaml\n": f"hora run my-task.yaml{free}\n",
        "hora check my-task.yaml\n": f"hora check my-task.yaml{free}\n",
        "-s allocation.rule=uniform": f"-s allocation.rule=uniform -s learner.steps=2{free}",
    }
    said = shell(folder, "".join(block.text for block in rest), changes, 1000)
    assert "rule my_rule:unsure" in said
    assert "right answer: my_reward:right 1, my_reward:tidy 1: reward 1, a success" in said
    assert "none missing, none doubled" in said
    assert "miss  reward" in said, "hora rollouts --failure"
    lines = (folder / "runs" / "my-task" / "groups.jsonl").read_text().splitlines()
    groups = [json.loads(line) for line in lines]
    assert len(groups) == 6 * 20
    assert {g["rule"] for g in groups} == {"my_rule:unsure"}
    assert set(groups[0]["rewards"]) == {"my_reward:right", "my_reward:tidy"}
    assert len({g["size"] for g in groups}) > 1, "the rule divides"
    assert (folder / "report" / "report.html").exists()


def test_the_same_task_runs_on_a_ray_cluster(folder: Path) -> None:
    """`serve deploy` and `hora train` with the reader's reward, rule and data."""
    start, deploy, stop = [b for b in blocks(PAGE) if b.kind == "sh" and is_cluster(b)]
    gcs, dashboard, agent, http, redis = (free_port() for _ in range(5))
    temporary = Path(tempfile.mkdtemp(prefix="hora-ray-"))
    head = (
        f"env -u RAY_ADDRESS ray start --head --block --port={gcs} --dashboard-port={dashboard} "
        f"--dashboard-agent-listen-port={agent} --temp-dir={temporary} --node-ip-address=127.0.0.1 "
        f"--disable-usage-stats --object-store-memory={256 * 2**20} > ray.log 2>&1 &"
    )
    end = "trap 'kill $(jobs -p); wait' EXIT\n"
    wait = "until serve status > /dev/null 2>&1; do sleep 1; done\n"
    env = {
        "RAY_ADDRESS": f"127.0.0.1:{gcs}",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{dashboard}",
    }
    script = end + "python make_problems.py\n" + start.text + wait + deploy.text + "serve shutdown -y\n"
    changes = {
        "--port 6380 &": f"--port {redis} > redis.log 2>&1 &",
        "127.0.0.1:6380": f"127.0.0.1:{redis}",
        "ray start --head\n": f"{head}\n",
        "port: 8000": f"port: {http}",
    }
    try:
        said = shell(folder, script, changes, 800, **env)
    finally:
        end_processes_of(temporary)
        shutil.rmtree(temporary, ignore_errors=True)
    assert stop.text.startswith("serve shutdown -y\nray stop\nkill %1 ")
    assert "rule my_rule:unsure" in said
    lines = (folder / "runs" / "my-cluster" / "groups.jsonl").read_text().splitlines()
    assert {json.loads(line)["rule"] for line in lines} == {"my_rule:unsure"}
    assert len(lines) == 6 * 20
    assert "my_reward:right" in said
