"""The complete configurations of the field's methods load, and say what each method's paper says."""

from typing import Any

import pytest

from hora_rl.common.load import ROOT, load

FOLDER = ROOT / "deploy" / "objectives"
METHODS: dict[str, dict[str, Any]] = {
    "grpo": {"advantage": "grpo", "normalisation": "sequence", "kl": 0.04, "kl_estimator": "k3"},
    "dr_grpo": {"advantage": "dr_grpo", "normalisation": "constant", "kl": 0.0},
    "dapo": {
        "advantage": "grpo",
        "aggregate": "token",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "overlong": "soft",
        "kl": 0.0,
    },
    "gspo": {"advantage": "grpo", "ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"loss": "cispo", "aggregate": "token", "clip_high": 4.0},
    "rloo": {"advantage": "rloo", "loss": "clip"},
    "max_rl": {"advantage": "max_rl"},
}


def test_every_file_is_a_method_that_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_file_says_what_the_method_is(name: str) -> None:
    config = load(str(FOLDER / f"{name}.yaml"))
    objective = config.learner.objective.model_dump()
    assert {key: objective[key] for key in METHODS[name]} == METHODS[name]
    assert config.allocation.rule == "uniform"
    assert config.reward.weights == {"accuracy": 1.0}
    assert objective["group_weight"]["kind"] == "none"
