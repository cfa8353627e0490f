"""A configuration loads from a file, a Serve file or a preset; every mistake in it is one clear line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hora_rl.common.config.base import Scope
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import check_paths, differences, dump_yaml, from_args, load

GOOD: dict[str, Any] = {"model": {"path": "org/model"}, "data": {"path": "arithmetic"}}


def written(tmp_path: Path, value: object) -> str:
    path = tmp_path / "experiment.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return str(path)


def test_a_configuration_comes_back_from_its_own_dump(tmp_path: Path) -> None:
    given = ["rollout.group_size=16", "reward.weights={accuracy: 1.0}", "learner.objective.lambda=0.3"]
    config = load(written(tmp_path, GOOD), [*given, "evaluation.k=[32,1,8,1]"])
    assert config.evaluation.k == (1, 8, 32)
    assert (config.rollout.group_size, config.reward.weights) == (16, {"accuracy": 1.0})
    assert config.learner.objective.lambda_ == 0.3, "a name that Python reserves"
    assert load(written(tmp_path, dump_yaml(config))) == config


@pytest.mark.parametrize(
    ("given", "kind"),
    [("difficulty", "difficulty"), ({"as_if": "hit_utility"}, "as_if"), ({"kind": "sqrt_size"}, "sqrt_size")],
)
def test_a_group_weight_may_be_named_in_one_word(given: Any, kind: str) -> None:
    objective = {"group_weight": given, "aggregate": "token"}
    config = from_args({**GOOD, "allocation": {"rule": "uniform"}, "learner": {"objective": objective}})
    assert config.learner.objective.group_weight.kind == kind
    assert config.learner.objective.normalisation == "none", "token aggregation has no Z"
    assert from_args(config.model_dump(mode="json")) == config


def test_a_serve_file_carries_the_experiment_as_its_arguments(tmp_path: Path) -> None:
    serve = {"applications": [{"name": "hora", "args": GOOD, "deployments": [{"name": "generator"}]}]}
    assert load(written(tmp_path, serve)) == from_args(GOOD)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [", "not YAML"),
        ("- 1", "must hold sections such as model: and rollout:, not list"),
        ("applications: []", "applications: must list one application"),
        ("applications: [{name: hora}]", r"applications\[0\].args: must hold the experiment"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
        ("[" * 3_000, "nested too deeply"),
        ("run: {name: a}\nmodel: {path: m}\nrun: {name: b}\n", "run is there twice"),
        ("run: {seed: " + "9" * 6_000 + "}", "not YAML"),
        ("run: {name: \ud800}", "cannot be read"),
    ],
)
def test_a_file_that_holds_no_experiment_says_so_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match=line) as refused:
        load(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("rollout.group_size", "write section.key=value"),
        ("data.path.x=1", "path is not a section"),
        ("a=[", "is not a YAML"),
        (f"run.seed={'[' * 3_000}", "is not a YAML"),
    ],
)
def test_an_override_that_cannot_be_applied_is_refused(tmp_path: Path, override: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        load(written(tmp_path, GOOD), [override])


def test_a_missing_model_folder_and_data_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path \(.*gone\): no such file or folder"):
        check_paths(from_args({**GOOD, "model": {"path": str(tmp_path / "gone")}}))
    with pytest.raises(ConfigError, match=r"data\.path \(.*gone\.jsonl\): no such file"):
        check_paths(from_args({**GOOD, "data": {"path": "gone.jsonl"}}))
    with pytest.raises(ConfigError, match=r"nowhere: no such file, and not one of the presets \(.*tiny"):
        load("nowhere")
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        check_paths(from_args({**GOOD, "model": {"path": str(tmp_path)}}))
    check_paths(from_args(GOOD))


def test_two_configurations_are_compared_key_by_key() -> None:
    other = from_args({**GOOD, "rollout": {"group_size": 16}})
    assert differences(from_args(GOOD), other) == ["rollout.group_size: 32 != 16"]
    assert differences(other, other.model_dump(mode="json")) == []


@pytest.mark.parametrize(
    ("key", "value", "scope"),
    [
        ("rollout.group_size", "16", Scope.RUN),
        ("learner.optimizer.learning_rate", "0.5", Scope.RUN),
        ("learner.steps", "7", Scope.START),
        ("generator.max_sequences", "7", Scope.START),
        ("queue.url", "redis://h:1", Scope.PART),
        ("generator.replicas", "3", Scope.PART),
        ("telemetry.rollouts", "none", Scope.PART),
    ],
)
def test_a_key_says_what_may_hold_another_value_of_it(
    tmp_path: Path, key: str, value: str, scope: Scope
) -> None:
    here, other = from_args(GOOD), load(written(tmp_path, GOOD), [f"{key}={value}"])
    for below in (Scope.START, Scope.PART):
        assert len(differences(here, other, below=below)) == (scope < below)


def test_what_lies_in_the_working_folder_is_found_from_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "problems.ndjson").write_text("{}\n")
    (tmp_path / "arithmetic").mkdir()
    monkeypatch.chdir(tmp_path)
    config = load("tiny", ["model.path=mymodel", "data.path=problems.ndjson"])
    assert config.model.path == str(tmp_path / "mymodel")
    assert config.data.path == str(tmp_path / "problems.ndjson")
    assert load("tiny", ["model.path=gpt2"]).model.path == "gpt2", "a name on the hub"
    assert load("tiny").data.path == "arithmetic"
