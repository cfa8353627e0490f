"""Every family of the table in docs/reference/models.md, as it is published: checked, trained for two steps
through a real engine and learner, exported and loaded."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.common.types import Group, Rollout
from hora_rl.deploy.checks import configuration, hardware, sources, task
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.run_checks import examine
from hora_rl.deploy.checks.weight_files import weight_files
from tests.support.engines import engine_of
from tests.support.groups import group
from tests.support.published import FAMILIES, architecture, write_published

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
OFTEN = ("qwen3.5", "gemma-3", "qwen3-moe")
"""Families of every change's tests; the others are slow."""
TRAINED = [name for name, family in FAMILIES.items() if not family.refused]
PROMPTS = ("57+68=?", "3+4=?")
DRIFT = {"float32": 1e-3, "bfloat16": 0.1}
"""Nats. In bfloat16 a router near a tie sends a token to another expert."""


def config_of(folder: Path, *more: str) -> Config:
    lengths = "rollout.max_prompt_tokens=64", "rollout.max_response_tokens=16"
    rate = "learner.optimizer.learning_rate=0.01"
    return load("tiny", [f"model.path={folder}", *lengths, rate, *more])


async def sampled(engine: Any, config: Config, version: int) -> list[Group]:
    """A group of four rollouts of every prompt, of which the first is right."""
    groups = []
    for index, text in enumerate(PROMPTS):
        prompt = render(load_tokenizer(config.model.path), text, config.data)
        rollouts = []
        for j, c in enumerate(await engine.generate(prompt, 4, seed=version, temperature=1.0)):
            assert {s.version for s in c.spans} == {version}
            rewards = {"accuracy": float(j == 0), "format": 1.0}
            rollouts.append(Rollout(c.tokens, c.logprobs, c.finish_reason, c.spans, "A", rewards, j == 0))
        groups.append(group(index, rollouts, prompt=prompt, pre_rollouts=4))
    return groups


def step(learner: Any, config: Config, groups: list[Group], version: int) -> float:
    """One optimizer step; returns the drift of the sampled log-probs from the learner's."""
    from hora_rl.learner.rows.batch import micro_batches, samples_of
    from hora_rl.learner.rows.estimator import estimator_of
    from hora_rl.learner.rows.packing import rows_of

    samples = samples_of(groups, estimator_of(config), len(groups), version)
    micro, _ = micro_batches(rows_of(samples, 4096, learner.sharing), 4096)
    done = learner.step(micro)
    assert done.applied
    assert np.isfinite(done.grad_norm)
    assert done.sums["drift_tokens"] > 0
    drift: float = done.sums["drift"] / done.sums["drift_tokens"]
    print(f"drift {drift:.2e}, gradient {done.grad_norm:.3g}")
    return drift


def published(learner: Any, config: Config, folder: Path, version: int) -> dict[str, object]:
    """The update that tells an engine to load the learner's weights."""
    from hora_rl.common.weights.file_sender import FileTransport
    from hora_rl.learner.weights.host_copy import HostCopy

    nobody: Any = SimpleNamespace()
    transport = FileTransport(folder, "r", lambda _: None, nobody, version)
    weights: Any = HostCopy(learner, 0, transport.room).snapshot(version, learner.device)
    return {"version": version, "path": transport.write(weights).path}


def logits(hf: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = hf.eval()(input_ids=torch.arange(5, 45)[None]).logits
    return found


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.slow) for name in TRAINED]
)
async def test_a_published_checkpoint_is_trained_and_exported(
    tmp_path: Path, process_group: None, family: str
) -> None:
    from hora_rl.learner.checkpoints.export import export
    from hora_rl.learner.model.engine import Engine

    folder = write_published(family, tmp_path / "model")
    config = config_of(folder, *FAMILIES[family].needs)
    checks = configuration.context, configuration.family, weight_files, task.stops
    assert all(f.level == "ok" for check in checks for f in check(Target(config)))

    learner, limit = Engine(config, 0, 1), DRIFT[config.model.dtype]
    before = {name: p.clone() for name, p in learner.gathered()}
    async with engine_of(config) as engine:
        for version in (0, 1):
            drift = step(learner, config, await sampled(engine, config, version), version)
            assert drift < limit, f"step {version}"
            await engine.receive(published(learner, config, tmp_path / "weights", version + 1))
            await engine.install(version + 1)
        last = await sampled(engine, config, 2)
    assert step(learner, config, last, 2) < limit
    after = dict(learner.gathered())
    moved = [name for name, p in before.items() if not torch.equal(p, after[name])]
    assert len(moved) > len(before) / 2

    export(learner, config, tmp_path / "out", 0, 3)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=learner.hf.dtype)
    assert architecture(tmp_path / "out") == type(loaded).__name__ == type(learner.hf).__name__
    assert torch.equal(logits(loaded), logits(learner.hf))
    learner.close()
    if architecture(folder) != architecture(tmp_path / "out"):  # a part of what was published
        async with engine_of(config_of(tmp_path / "out", *FAMILIES[family].needs)) as engine:
            await sampled(engine, config, 0)


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - set(TRAINED)))
def test_a_family_that_one_side_cannot_do_is_refused_by_the_check(tmp_path: Path, family: str) -> None:
    config = config_of(write_published(family, tmp_path), *FAMILIES[family].needs)
    checks = configuration.family, hardware.on_cpu
    failed = [f.line for f in examine(Target(config), checks) if f.level == "fail"]
    assert any(FAMILIES[family].refused in line for line in failed)
    assert not any("\n" in line for line in failed)


@pytest.mark.parametrize(
    ("family", "settings", "says"),
    [
        ("ministral-3", {"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ("qwen3", {"architectures": ["Qwen3ForSequenceClassification"]}, "Qwen3ForSequenceClassification"),
    ],
)
def test_quantized_weights_and_judges_of_texts_are_refused_by_the_check(
    tmp_path: Path, family: str, settings: dict[str, Any], says: str
) -> None:
    file = write_published(family, tmp_path) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(ConfigError, match=says):
        list(configuration.family(Target(config_of(tmp_path))))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model_type": "qwen9"}, r"transformers.* has no causal language model of type qwen9"),
        ({"model_type": "t5"}, r"transformers.* has no causal language model of type T5"),
        ({"model_type": None}, r"Should have a `model_type` key"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}},
            r"set model.trust_remote_code: true if you trust it",
        ),
        ({"num_attention_heads": 3, "head_dim": None}, r"cannot train Qwen2ForCausalLM .*its forward fails"),
    ],
)
def test_a_folder_that_is_no_model_of_the_stack_is_lines_of_the_check_and_no_traceback(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    file = write_published("qwen2.5", tmp_path) / "config.json"
    whole = json.loads(file.read_text()) | settings
    file.write_text(json.dumps({name: value for name, value in whole.items() if value is not None}))
    checks = configuration.family, weight_files, sources.data, task.stops
    first, *others = (f for f in examine(Target(config_of(tmp_path)), checks) if f.level == "fail")
    assert re.search(says, first.line)
    assert not any("\n" in f.line for f in (first, *others))
