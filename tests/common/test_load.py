"""A configuration loads from a file, a Serve file or a preset, or is refused in one line a mistake."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from hora_rl.common.config.base import Scope, Section
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import GONE, check_paths, differences, dump_yaml, from_args, load

GOOD: dict[str, Any] = {"model": {"path": "org/model"}, "data": {"path": "arithmetic"}}


def written(tmp_path: Path, value: object) -> str:
    path = tmp_path / "experiment.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return str(path)


def test_a_configuration_comes_back_from_its_own_dump(tmp_path: Path) -> None:
    given = ["rollout.group_size=16", "reward.weights={accuracy: 1.0}", "learner.objective.loss=dapo"]
    config = load(written(tmp_path, GOOD), [*given, "evaluation.k=[32,1,8,1]"])
    assert config.evaluation.k == (1, 8, 32)
    assert (config.rollout.group_size, config.reward.weights) == (16, {"accuracy": 1.0})
    assert config.learner.objective.clip_high == 0.28, "the default of the loss"
    assert load(written(tmp_path, dump_yaml(config))) == config


@pytest.mark.parametrize(
    ("weight", "kind"),
    [("difficulty", "difficulty"), ({"as_if": "hit_utility"}, "as_if"), ({"kind": "sqrt_size"}, "sqrt_size")],
)
def test_a_group_weight_may_be_named_in_one_word(weight: Any, kind: str) -> None:
    objective = {"group_weight": weight}
    config = from_args({**GOOD, "allocation": {"rule": "uniform"}, "learner": {"objective": objective}})
    assert config.learner.objective.group_weight.kind == kind
    assert from_args(config.model_dump(mode="json")) == config


def test_a_serve_file_carries_the_experiment_as_its_arguments(tmp_path: Path) -> None:
    serve = {"applications": [{"name": "hora", "args": GOOD, "deployments": [{"name": "generator"}]}]}
    assert load(written(tmp_path, serve)) == from_args(GOOD)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: [", "YAML"),
        ("- 1", "list"),
        ("applications: []", "applications"),
        ("applications: [{name: hora}]", "applications[0].args"),
        ("!!python/object/apply:os.getcwd []", "YAML"),
        ("[" * 3_000, "nested too deeply"),
        ("run: {name: a}\nmodel: {path: m}\nrun: {name: b}\n", "run is there twice"),
        ("run: {seed: " + "9" * 6_000 + "}", "YAML"),
        ("run: {name: \ud800}", "cannot be read"),
        ("rollout.group_size", "section.key=value"),
        ("data.path.x=1", "path is not a section"),
        ("a=[", "YAML"),
        (f"run.seed={'[' * 3_000}", "YAML"),
        ("model.path=gone/it/is", "model.path"),
        ("model.path=.", "config.json"),
        ("data.path=gone.jsonl", "data.path"),
    ],
)
def test_a_file_an_override_or_a_path_that_is_none_says_so_in_one_line(
    tmp_path: Path, text: str, named: str
) -> None:
    """Overrides are those that begin with a key."""
    path = tmp_path / "experiment.yaml"
    override = re.match(r"[\w.]+(=|$)", text)
    path.write_bytes((yaml.safe_dump(GOOD) if override else text).encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError) as refused:
        check_paths(load(str(path), [text] if override else []))
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_that_is_no_file_is_answered_with_the_presets() -> None:
    with pytest.raises(ConfigError, match=r"nowhere: .*tiny"):
        load("nowhere")
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
def test_a_key_says_what_may_have_another_value(tmp_path: Path, key: str, value: str, scope: Scope) -> None:
    here, other = from_args(GOOD), load(written(tmp_path, GOOD), [f"{key}={value}"])
    for below in (Scope.START, Scope.PART):
        assert len(differences(here, other, below=below)) == (scope < below)


def test_paths_here_are_found_from_any_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymodel").mkdir()
    (tmp_path / "problems.ndjson").write_text("{}\n")
    (tmp_path / "arithmetic").mkdir()
    monkeypatch.chdir(tmp_path)
    config = load("tiny", ["model.path=mymodel", "data.path=problems.ndjson"])
    assert config.model.path == str(tmp_path / "mymodel")
    assert config.data.path == str(tmp_path / "problems.ndjson")
    assert load("tiny", ["model.path=gpt2"]).model.path == "gpt2", "a name on the hub"
    assert load("tiny").data.path == "arithmetic"


REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text("utf-8"))


@pytest.mark.parametrize(("settings", "named"), REFUSED)
def test_each_mistake_is_one_line_with_key_and_value(settings: list[str], named: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load("tiny", settings)
    assert str(caught.value).startswith("tiny: ")
    assert [name for name in named if name not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", GONE)
def test_a_key_that_is_gone_stands_in_older_runs_with_the_value_that_holds_and_is_refused_with_another(
    key: str,
) -> None:
    section = key.rpartition(".")[0]
    prefixes = ("", "data.sources.a.") if section.startswith("reward") else ("",)
    for prefix in prefixes:
        base = ["data={sources: {a: {path: arithmetic}}}"] if prefix else []
        for same in GONE[key][1:]:
            assert load("tiny", [*base, f"{prefix}{key}={json.dumps(same)}"]) == load(
                "tiny", [*base, *([f"{prefix}{section}={{}}"] if prefix else [])]
            )
        with pytest.raises(ConfigError, match=f"{prefix}{key}: this key is gone"):
            load("tiny", [*base, f"{prefix}{key}=another"])


def test_several_mistakes_are_several_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        load("tiny", ["rollout.a=1", "learner.steps=0"])
    assert len(str(caught.value).splitlines()) == 2


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


@pytest.mark.parametrize(
    "settings",
    [
        "generator.sleep=step rollout.max_staleness=0",
        # Uniform sampling makes no group smaller than G.
        "learner.objective.advantage=pkpo learner.objective.k=16 allocation.rule=uniform",
        "learner.offload_optimizer=true learner.zero_stage=1",
        "learner.offload_optimizer=true model.dtype=bfloat16",
        "learner.lora.rank=16 learner.lora.alpha=24",  # float32 rounds nothing
    ],
)
def test_what_can_stand_together_is_accepted(settings: str) -> None:
    load("tiny", settings.split())
