"""SmolLM2, a pretrained model with a real tokenizer, on the whole stack in bfloat16: an adapter under its
chat template, stopped and resumed; full weights of two ranks under ZeRO-3 on plain text."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.special_tokens import completed, silent_tokens
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.common.model.pretrained import obtain
from hora_rl.deploy.runs.ended_run import export_run
from hora_rl.evaluation.rollout_table import read_rollouts
from tests.support.jsonl import lines
from tests.system.conftest import LiveRun

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
SHORT = {"preset": "smollm2", "evaluation.path": "null", "telemetry.rollouts": "logprobs"}
SHORT |= {"rollout.prompts_per_batch": 4, "rollout.group_size": 4, "rollout.pre_rollouts": 2}
SHORT |= {"learner.checkpoint_every": 1, "model.dtype": "bfloat16"}


@pytest.fixture(scope="module")
def model() -> Path:
    path = load("smollm2").model.path
    try:
        obtain(path)
    except ConfigError as error:
        if "cannot be downloaded" not in str(error):
            raise
        pytest.skip(str(error))
    return Path(path)


def check_rollouts(run: Path, model: Path) -> None:
    """Texts are those of their tokens without what ended them, and hold no special token."""
    tokenizer = load_tokenizer(str(model))
    silent = silent_tokens(tokenizer)
    rows = read_rollouts(run).to_pylist()
    assert rows
    for row in rows:
        assert row["completion"] == completed(tokenizer, silent, row["tokens"], row["finish"])
        assert not any(tokenizer.convert_ids_to_tokens(i) in row["completion"] for i in silent)
    assert {row["finish"] for row in rows} <= {"stop", "length"}
    assert any(row["finish"] == "stop" for row in rows)
    drifts = [s.get("drift", 0.0) for s in lines(run / "steps.jsonl")]
    assert max(drifts) < 0.1, "generator and learner compute the same policy"


def test_an_adapter_under_the_chat_template_is_stopped_and_resumed(
    model: Path, live_run: Callable[..., LiveRun], tmp_path: Path
) -> None:
    chat = {"data.chat": True, "data.template": "'{problem} ='", "rollout.stop": [], "learner.lora.rank": 8}
    chat |= {"data.path": "arithmetic:1-1:spaced", "data.limit": 60, "reward.answer": "lenient"}  # has hits
    live = live_run(2, **SHORT, **chat, **{"rollout.max_response_tokens": 24, "learner.lora.alpha": 16})
    live.until(1)
    live.interrupt()
    live.stopped()
    live.start("--resume")
    live.finish()
    live.assert_exact()
    check_rollouts(live.run, model)
    before = load_file(model / "model.safetensors")
    export_run(live.run, None, tmp_path / "exported")
    for folder in (live.run / "model", tmp_path / "exported"):
        after = load_file(folder / "model.safetensors")
        assert after.keys() == before.keys()
        assert any(not torch.equal(after[name], before[name]) for name in before)
        assert load_tokenizer(str(folder)).chat_template


def test_two_ranks_train_full_weights_under_zero_3(model: Path, live_run: Callable[..., LiveRun]) -> None:
    small = {"learner.tokens_per_microbatch": 256, "learner.logit_chunk": 16, "generator.kv_cache_gib": 0.1}
    live = live_run(2, **SHORT, **small, **{"learner.workers": 2, "learner.zero_stage": 3})
    live.finish()
    live.assert_exact()
    check_rollouts(live.run, model)
    before, after = (load_file(folder / "model.safetensors") for folder in (model, live.run / "model"))
    assert after.keys() == before.keys()
    moved = [name for name in before if not torch.equal(after[name], before[name])]
    assert len(moved) > len(before) / 2
