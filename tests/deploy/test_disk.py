"""What a run takes of the disk is known before it starts."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from hora_rl.common.load import load
from hora_rl.common.rollout_files import files_of
from hora_rl.deploy.checks import disk, machine
from hora_rl.deploy.checks.findings import Target, size
from hora_rl.deploy.checks.memory import estimate_of, memory
from tests.support.checks import Make, by_name, one
from tests.support.groups import rollout
from tests.support.rollouts import tokenizer, write_rollouts
from tests.support.tiny_qwen2 import SHAPES, shape_of


def test_a_run_that_would_fill_the_disk_is_refused(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    need = sum(use.gib for use in disk.uses(config(), estimate_of(config())))
    for spare, level in ((0.9, "fail"), (1.1, "ok")):
        free = int((need + spare) * 2**30)
        monkeypatch.setattr(disk.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        [finding] = one(disk.disk, Target(config())).values()
        assert finding.level == level
        assert f"{size(disk.SPARE_GIB)} must remain" in finding.says
        assert ("keep_checkpoints" in finding.fix) == (level == "fail")


def test_what_200_steps_of_7b_take_is_said_before_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen2.5-7B has 7.6 billion parameters; AdamW keeps a float32 copy and two moments beside bfloat16."""
    seven = shape_of(*SHAPES["7B"])
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: seven)
    chosen = load("qwen2.5-7b")
    parts = {use.what: use.gib for use in disk.uses(chosen, estimate_of(chosen))}
    assert parts["model"] == pytest.approx(14.2, rel=0.01)
    assert parts["checkpoints"] == pytest.approx(14.2 * 7 * (chosen.learner.keep_checkpoints + 1), rel=0.01)
    [said] = disk.forecast(Target(chosen))
    assert "learner.keep_checkpoints" in said.says


def test_a_model_whose_size_is_unknown_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    [said] = disk.forecast(Target(load("qwen2.5-7b", ["model.path=nobody/nothing-here"])))
    assert "size is not known here" in said.says


@pytest.mark.parametrize("lora", [None, {"rank": 8}])
def test_memory_and_disk_say_one_size_of_the_checkpoints(config: Make, lora: dict[str, int] | None) -> None:
    """Also where the model's files have another precision than the run."""
    estimate = estimate_of(config())
    assert estimate is not None
    of_files = machine.model_gib(config().model.path)
    assert estimate.weights_gib == pytest.approx(of_files, rel=0.03)
    chosen = config(model={"dtype": "bfloat16"}, learner={"lora": lora, "keep_checkpoints": 500})
    table = by_name(memory(Target(chosen)))["memory per part"].says
    row = re.search(r"disk, checkpoints +([\d.]+)", table)
    [use] = [use for use in disk.uses(chosen, estimate_of(chosen)) if use.what == "checkpoints"]
    assert row is not None
    assert float(row[1]) == pytest.approx(use.gib, abs=0.01)
    assert use.gib > 0.1


@pytest.mark.parametrize("logprobs", ["false", "true"])
def test_no_more_rollouts_are_written_than_is_said(tmp_path: Path, logprobs: str) -> None:
    setting = f"telemetry.rollouts_logprobs={logprobs}"
    text = tokenizer().encode("<think>7+8+0=15,3+5+1=9</think><answer>95</answer>" * 2)

    def draw(step: int, prompt: int) -> list:
        shifted = [text[(i * (prompt + 3)) % len(text)] for i in range(64)]
        return [rollout(shifted, logprobs=-0.1 * (1 + i + prompt), version=step) for i in range(8)]

    write_rollouts(tmp_path, setting, steps=2, prompts=10, draw=draw)
    written = sum(path.stat().st_size for path in files_of(tmp_path).values())
    sizes = ["learner.steps=2", "rollout.prompts_per_batch=10", "rollout.group_size=8", "rollout.shards=1"]
    config = load("tiny", [setting, *sizes, "rollout.pre_rollouts=2", "rollout.max_response_tokens=64"])
    assert written < disk.expected_gib(config.rollout, config.telemetry, 2) * 2**30
    large = load("qwen2.5-7b", ["telemetry.rollouts_gib=0.5"])
    assert disk.expected_gib(large.rollout, large.telemetry, large.learner.steps) == 0.5
