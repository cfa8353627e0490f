"""The launch files of examples/: what their scheduler would send is sent here, to the scripts themselves."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

from hora_rl.common.load import ROOT, load
from tests.support.ports import until
from tests.support.programs import run_well

LAUNCH = ROOT / "examples" / "launch"
BIN = Path(sys.executable).parent
SCRIPTS = [LAUNCH / "slurm.sbatch", LAUNCH / "ray-job.sh"]
# Stands for hora: takes a second to stop in order, as a run does.
STUB = """\
#!/bin/bash
echo "$@" >> {folder}/called
trap 'sleep {stopping_s}; echo stopped >> {folder}/called; exit 130' TERM
[ -z "{status}" ] || exit {status}
while :; do sleep 0.1; done
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_are_sound(script: Path) -> None:
    for words in (["bash", "-n"], [BIN / "shellcheck", "-s", "bash"]):
        run_well(*words, script)


def batch(folder: Path, status: object, stopping_s: int, *words: str) -> subprocess.Popen[bytes]:
    """The batch script with what it sees of Slurm: environment and `scontrol`, which notes its words in
    `folder`/queued."""
    program(folder / "bin" / "scontrol", f'#!/bin/sh\necho "$@" >> {folder / "queued"}\n')
    stub = program(folder / "hora", STUB.format(folder=folder, status=status, stopping_s=stopping_s))
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    own = {"PATH": path, "HORA": str(stub), "SLURM_JOB_ID": "77", "SLURM_SUBMIT_DIR": str(folder)}
    command = ["bash", str(LAUNCH / "slurm.sbatch"), "mine.yaml", *words]
    return subprocess.Popen(command, env=os.environ | own, start_new_session=True)


@pytest.mark.parametrize("status", [0, 1])
def test_a_run_that_ends_by_itself_is_not_queued_again(tmp_path: Path, status: int) -> None:
    assert batch(tmp_path, status, 0, "-s", "run.seed=1").wait(20) == status
    assert not (tmp_path / "queued").exists()
    assert (tmp_path / "called").read_text() == "run mine.yaml --resume-or-start -s run.seed=1\n"


def test_the_limit_s_signal_stops_the_run_in_order_and_queues_it_again(tmp_path: Path) -> None:
    called, run = tmp_path / "called", batch(tmp_path, "", 1)
    until(called.exists)
    for _ in range(2):  # Slurm repeats itself, and signals the script alone
        time.sleep(0.3)
        run.send_signal(signal.SIGTERM)
    assert run.wait(20) == 130
    assert called.read_text().splitlines()[-1] == "stopped"
    assert (tmp_path / "queued").read_text() == "requeue 77\n"


def test_skypilot_would_take_the_task_and_its_machine_holds_the_run() -> None:
    """Against SkyPilot's own schemas (0.14.1)."""
    schemas = json.loads((Path(__file__).parent / "skypilot-0.14.1.json").read_text())
    task = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text())
    jsonschema.validate(task, schemas["task"])
    jsonschema.validate(task["resources"], schemas["resources"])
    with pytest.raises(jsonschema.ValidationError, match="misspelt"):
        jsonschema.validate({**task, "misspelt": 1}, schemas["task"])
    words = shlex.split(task["run"])
    assert words[:2] == [".venv/bin/hora", "run"]
    assert "--resume-or-start" in words
    config = load(words[2], [words[i + 1] for i, word in enumerate(words) if word == "-s"])
    gpus = int(task["resources"]["accelerators"].split(":")[1])
    assert config.generator.replicas * config.generator.tensor_parallel + config.learner.workers == gpus
    assert config.run.folder in task["volumes"]


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[str]:
    """Address of the job server of a Ray node of its own."""
    import ray
    from ray._private.node import Node

    quiet = {"log_to_driver": False, "configure_logging": False, "object_store_memory": 100 * 2**20}
    ray.init(address="local", num_cpus=2, include_dashboard=True, dashboard_port=0, **quiet)
    node = ray._private.worker._global_node
    assert isinstance(node, Node)
    yield f"http://{node.webui_url}"
    ray.shutdown()


@pytest.mark.system
@pytest.mark.slow
def test_a_job_of_ray_is_given_the_time_to_stop_in_order(dashboard: str, tmp_path: Path) -> None:
    called = tmp_path / "called"
    stub = program(tmp_path / "hora", STUB.format(folder=tmp_path, status="", stopping_s=5))
    (tmp_path / "mine.yaml").touch()
    own = {"HORA": str(stub), "RAY": str(BIN / "ray"), "RAY_API_SERVER_ADDRESS": dashboard}
    done = run_well(LAUNCH / "ray-job.sh", tmp_path / "mine.yaml", "-s", "run.seed=1", limit_s=100, **own)
    [job] = set(re.findall(r"raysubmit_\w+", done.stdout + done.stderr))
    until(called.exists, limit_s=100)
    assert called.read_text() == f"train {tmp_path / 'mine.yaml'} -s run.seed=1\n"
    run_well(BIN / "ray", "job", "stop", job, limit_s=100, **own)
    assert called.read_text().splitlines()[-1] == "stopped"  # after five seconds, of which Ray gives three
