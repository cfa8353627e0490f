"""The acceptance program runs where there is no GPU, and where HORA's servers are not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_acceptance import Line

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]
# DeepSpeed itself imports msgpack.
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

ABSENT = {"ray", "vllm", "redis", "structlog", "rich", "typer", "math_verify", "datasets", "peft"}


class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"{name} is not on this machine")


sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ABSENT else found(name, package)
from benchmarks.gpu_acceptance import main
sys.exit(main(["--small"]))
"""


@pytest.mark.timeout(280)
def test_every_check_runs_on_cpu_with_torch_transformers_deepspeed_and_pydantic_alone() -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT]
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=270)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-3000:]
    lines = [line for line in ran.stdout.splitlines() if line[:5] in ("PASS ", "FAIL ", "SKIP ")]
    assert {line[:4] for line in lines} == {"PASS", "SKIP"}
    named = {line[5:].partition(":")[0] for line in lines}
    for name in (
        "ceilings",
        "chunked head, float32",
        "attention kernel",
        "ZeRO-3 on one rank, norm",
        "gather",
    ):
        assert name in named
    assert "SKIP LoRA step: peft is not installed" in lines


def test_what_vllm_packs_is_unpacked_over_a_communicator_that_stands_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check itself, with streams that wait for nothing: vLLM's own need a GPU."""
    from contextlib import nullcontext

    from vllm.distributed.weight_transfer import packed_tensor

    from benchmarks import gpu_packed

    class Stream:
        def synchronize(self) -> None: ...

    monkeypatch.setattr(packed_tensor, "_get_streams", lambda device, count: (Stream(),) * count)
    monkeypatch.setattr(packed_tensor.torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(packed_tensor.torch.cuda, "stream", lambda stream: nullcontext())
    passed, figure = gpu_packed.packed_transfer(2**20, torch.device("cpu"))
    assert passed
    assert int(figure.partition(" ")[0]) >= 4
    broken = gpu_packed.StandIn.broadcast
    monkeypatch.setattr(
        gpu_packed.StandIn,
        "broadcast",
        lambda self, tensor, src: (broken(self, tensor, src), tensor.zero_() if not self.sends else None),
    )
    passed, _ = gpu_packed.packed_transfer(2**20, torch.device("cpu"))
    assert not passed


def test_a_line_says_what_failed_and_what_was_expected() -> None:
    assert str(Line("gather", False, "0.2 s per GB", "0.066")) == "FAIL gather: 0.2 s per GB (expected 0.066)"
    assert str(Line("LoRA step", None, "no peft")) == "SKIP LoRA step: no peft"
