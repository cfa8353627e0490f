"""A configuration loads from a file, a Serve file or a preset; every mistake in it is one clear line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from hora_rl.common.config.base import Scope, Section
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import check_paths, differences, dump_yaml, from_args, load

GOOD: dict[str, Any] = {"model": {"path": "org/model"}, "data": {"path": "arithmetic"}}


def written(tmp_path: Path, value: object) -> str:
    path = tmp_path / "experiment.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return str(path)


def test_a_configuration_comes_back_from_its_own_dump(tmp_path: Path) -> None:
    config = load(written(tmp_path, GOOD), ["rollout.group_size=16", "reward.weights={accuracy: 1.0}"])
    assert (config.rollout.group_size, config.reward.weights) == (16, {"accuracy": 1.0})
    assert load(written(tmp_path, dump_yaml(config))) == config


def test_a_serve_file_carries_the_experiment_as_its_arguments(tmp_path: Path) -> None:
    serve = {"applications": [{"name": "hora", "args": GOOD, "deployments": [{"name": "generator"}]}]}
    assert load(written(tmp_path, serve)) == from_args(GOOD)


@pytest.mark.parametrize(
    ("section", "values", "line"),
    [
        ("rolout", {}, "rolout: unknown key; did you mean rollout?"),
        (
            "learner",
            {"checkpoint_aside": True},
            "learner.checkpoint_aside: unknown key; did you mean async_checkpoint?",
        ),
        ("model", {}, "model.path: is required"),
        ("rollout", {"pre_rollouts": 32}, "rollout.pre_rollouts (32) must be smaller than"),
        ("rollout", {"temperature": 0}, "rollout.temperature (0): Input should be greater than 0"),
        ("learner", {"zero_stage": 4}, "learner.zero_stage (4): Input should be 0, 1, 2 or 3"),
        ("weights", {"transport": "ipc"}, "weights.transport ('ipc'): Input should be 'file', 'gloo' or"),
        ("queue", {"capacity": 10}, "queue.capacity (10) must be at least"),
    ],
)
def test_each_mistake_is_one_line_with_key_value_and_reason(
    tmp_path: Path, section: str, values: dict[str, Any], line: str
) -> None:
    path = written(tmp_path, {**GOOD, section: values})
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("reward.weights={accuracy: .nan}", "reward.weights.accuracy (nan)"),
        ("reward.weights={format: 1, accuracy: .inf}", "reward.weights.accuracy (inf)"),
        ("learner.optimizer.learning_rate=.inf", "learner.optimizer.learning_rate (inf)"),
        ("learner.optimizer.learning_rate=inf", "learner.optimizer.learning_rate ('inf')"),
        ("learner.optimizer.learning_rate=1e999", "learner.optimizer.learning_rate ('1e999')"),
        ("reward.time_limit_s=.inf", "reward.time_limit_s (inf)"),
        ("reward.success_at=-.inf", "reward.success_at (-inf)"),
        ("rollout.temperature=.inf", "rollout.temperature (inf)"),
        ("learner.optimizer.betas=[0.9, .nan]", "learner.optimizer.betas.1 (nan)"),
        ("allocation.alpha=.inf", "allocation.alpha (inf)"),
        ("data.sources={a: {path: arithmetic, weight: .inf}}", "data.sources.a.weight (inf)"),
        ("environment.verifiers={taskset: t, config: {rate: [.nan]}}", "environment.verifiers.config.rate"),
    ],
)
def test_settings_are_finite_also_inside_dicts_and_lists(tmp_path: Path, override: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, GOOD), [override])
    assert place in str(caught.value)
    assert "a finite number" in str(caught.value)
    assert "\n" not in str(caught.value)


def sections(of: type[BaseModel] = Section) -> Iterator[type[BaseModel]]:
    for section in of.__subclasses__():
        yield section
        yield from sections(section)


def test_no_setting_is_of_a_kind_that_takes_any_number() -> None:
    """`Any` and `object` are not looked into; `JsonValue` is."""
    free = [
        f"{section.__name__}.{name}"
        for section in sections()
        for name, field in section.model_fields.items()
        if re.search(r"\b(Any|object)\b", str(field.annotation))
    ]
    assert free == []


def test_several_mistakes_are_several_lines(tmp_path: Path) -> None:
    path = written(tmp_path, {**GOOD, "rollout": {"a": 1}, "learner": {"steps": 0}})
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [", "not YAML"),
        ("- 1", "must hold sections such as model: and rollout:, not list"),
        ("applications: []", "applications: must list one application"),
        ("applications: [{name: hora}]", r"applications\[0\].args: must hold the experiment"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
    ],
)
def test_a_file_that_holds_no_experiment_says_so(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        load(written(tmp_path, text))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("rollout.group_size", "write section.key=value"),
        ("data.path.x=1", "path is not a section"),
        ("a=[", "is not a YAML"),
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
