"""Every preset loads, and the paper's three say what its configuration tables say. The configurations of the
field's methods say what each method's paper says."""

from operator import attrgetter
from typing import Any

import pytest

from hora_rl.common.answer_format import FORMAT_INSTRUCTIONS
from hora_rl.common.load import ROOT, load, presets

ALL = sorted(presets())

# Appendix "Training configurations", tables for 1.5B-Instruct, 3B and 7B: equal but for the model.
PAPER = {
    "rollout": {"prompts_per_batch": 60, "group_size": 32, "pre_rollouts": 8, "shards": 4, "temperature": 0.7}
    | {"max_prompt_tokens": 2048, "max_response_tokens": 2048},
    "allocation": {"prior": "fixed", "rule": "hit_utility"},
    "allocation.warmup": {"format_reward": 0.85, "cycles": 3},
    "reward": {"weights": {"format": 0.5, "accuracy": 0.5}},
    "learner": {"steps": 200},
    "learner.optimizer": {"learning_rate": 1.0e-6, "schedule": "linear"}
    | {"max_grad_norm": 1.0, "weight_decay": 0.0},
    "learner.objective": {"clip_low": 0.2, "clip_high": 0.2, "kl": 0.0, "normalisation": "constant"}
    | {"importance": "token_truncate", "updates_per_batch": 1},
    "model": {"dtype": "bfloat16"},
}
MODELS = ("Qwen2.5-1.5B-Instruct", "Qwen2.5-3B", "Qwen2.5-7B")


@pytest.mark.parametrize("name", ALL)
def test_every_preset_loads(name: str) -> None:
    assert load(name).run.name == name


@pytest.mark.parametrize("name", MODELS)
def test_the_papers_presets_say_what_its_tables_say(name: str) -> None:
    config = load(name.lower())
    assert config.model.path == f"Qwen/{name}"
    assert "math12k" in config.data.path
    assert config.data.system == FORMAT_INSTRUCTIONS
    for section, expected in PAPER.items():
        said = attrgetter(section)(config)
        assert {key: getattr(said, key) for key in expected} == expected, section


FOLDER = ROOT / "deploy" / "objectives"
METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"advantage": "grpo", "normalisation": "sequence", "kl": 0.04},
    "dr_grpo": {"advantage": "dr_grpo", "normalisation": "constant", "kl": 0.0},
    "dapo": {"advantage": "grpo", "normalisation": "token", "clip_low": 0.2, "clip_high": 0.28}
    | {"overlong": "soft", "kl": 0.0},
    "gspo": {"advantage": "grpo", "loss": "gspo", "normalisation": "sequence"}
    | {"clip_low": 3e-4, "clip_high": 4e-4, "kl": 0.0},
    "cispo": {"loss": "cispo", "normalisation": "token", "clip_high": 4.0, "kl": 0.0},
    "rloo": {"advantage": "rloo", "loss": "clip", "normalisation": "constant"},
    "max_rl": {"advantage": "max_rl", "normalisation": "token", "clip_high": 0.28},
}


@pytest.mark.parametrize("name", sorted({*METHODS, *(path.stem for path in FOLDER.glob("*.yaml"))}))
def test_a_methods_file_says_what_the_method_is(name: str) -> None:
    config = load(str(FOLDER / f"{name}.yaml"))
    objective = config.learner.objective.model_dump()
    assert {key: objective[key] for key in METHODS[name]} == METHODS[name]
    assert config.allocation.rule == "uniform"
    assert config.reward.weights == {"accuracy": 1.0}
    assert objective["group_weight"]["kind"] == "none"
