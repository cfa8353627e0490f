"""A folder for temporary files is refused if, and only if, a socket of Ray or vLLM would not fit below it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hora_rl.common.errors import RunError
from hora_rl.deploy.checks import machine
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.machine.ray_start import LONGEST, OF_ENGINE, OF_RAY, check_sockets
from tests.support.checks import Make

MOST = {OF_RAY: LONGEST - len(OF_RAY) - 1, OF_ENGINE: LONGEST - len(OF_ENGINE) - 1}


def folder(length: int) -> str:
    return "/tmp/" + "é" + "x" * (length - 7)


@pytest.mark.parametrize(
    ("own", "of_ray", "refused"),
    [
        (MOST[OF_RAY], None, None),
        (MOST[OF_RAY] + 1, None, "TMPDIR "),
        (MOST[OF_ENGINE], 4, None),
        (MOST[OF_ENGINE] + 1, 4, "TMPDIR "),
        (4, MOST[OF_RAY] + 1, "RAY_TMPDIR "),
    ],
)
def test_the_folder_is_named_with_what_it_may_have(
    own: int, of_ray: int | None, refused: str | None, monkeypatch: pytest.MonkeyPatch, config: Make
) -> None:
    for key, length in (("TMPDIR", own), ("RAY_TMPDIR", of_ray)):
        monkeypatch.delenv(key, raising=False)
        if length is not None:
            monkeypatch.setenv(key, folder(length) if length > 4 else "/tmp")
    monkeypatch.setattr(tempfile, "tempdir", os.environ["TMPDIR"])  # tempfile takes a folder that exists
    if refused is None:
        assert check_sockets() <= LONGEST
        return
    with pytest.raises(RunError) as refusal:
        list(machine.sockets(Target(config())))
    assert str(refusal.value).startswith(refused)
    assert not list(machine.sockets(Target(config(), "train"))), "Ray is up already"


@pytest.mark.system
def test_ray_and_vllm_add_no_more_than_that(tmp_path: Path) -> None:
    """Ray starts in the longest folder that is allowed; vLLM's name for a socket has the length assumed."""
    with tempfile.TemporaryDirectory(prefix="x" * (MOST[OF_RAY] - len("/tmp/") - 8), dir="/tmp") as longest:
        assert len(longest) == MOST[OF_RAY]
        ran = subprocess.run(
            [sys.executable, "-c", ASKED],
            env={**os.environ, "TMPDIR": longest, "VLLM_RPC_BASE_PATH": "/x"},
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
    of_ray, of_engine = map(int, ran.stdout.split()[-2:])
    assert of_ray <= LONGEST
    assert of_engine == len("/x/") + len(OF_ENGINE.partition("/")[2])


ASKED = """
import ray
from vllm.utils.network_utils import get_open_zmq_ipc_path
ray.init(address="local", num_cpus=1, include_dashboard=False)
print(len(ray._private.worker._global_node.plasma_store_socket_name), len(get_open_zmq_ipc_path()) - len("ipc://"))
"""
