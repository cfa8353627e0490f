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
from hora_rl.common.gone_keys import GONE
from hora_rl.common.load import check_paths, differences, dump_yaml, from_args, load

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
    ("given", "kind"),
    [("difficulty", "difficulty"), ({"as_if": "hit_utility"}, "as_if"), ({"kind": "sqrt_size"}, "sqrt_size")],
)
def test_a_group_weight_may_be_named_in_one_word(given: Any, kind: str) -> None:
    objective = {"group_weight": given}
    config = from_args({**GOOD, "allocation": {"rule": "uniform"}, "learner": {"objective": objective}})
    assert config.learner.objective.group_weight.kind == kind
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


KEYS = [
    ("rolout={}", "rolout: unknown key; did you mean rollout?"),
    ("learner.checkpoint_aside=true", "checkpoint_aside: unknown key; did you mean async_checkpoint?"),
    ("learner.lora.rnak=8", "learner.lora.rnak: unknown key; did you mean rank?"),
    ("model={}", "model.path: is required"),
    ("rollout.pre_rollouts=32", "rollout.pre_rollouts (32) must be smaller than rollout.group_size (16)"),
    ("rollout.group_size=65537", "rollout.group_size (65537): Input should be less than or equal to 65536"),
    ("rollout.temperature=0", "rollout.temperature (0): Input should be greater than 0"),
    ("learner.zero_stage=4", "learner.zero_stage (4): Input should be 0, 1, 2 or 3"),
    ("weights.transport=ipc", "weights.transport ('ipc'): Input should be 'file', 'gloo' or"),
    ("evaluation.truncation={top_p: 2}", "evaluation.truncation"),
    ("evaluation.truncation={top: 2}", "evaluation.truncation"),
    ("reward.success=acuracy", "'acuracy'"),
    ("reward.answer='boxed '", "'boxed '"),
    ("reward.success_at=0", "reward.success_at (0.0) makes every rollout a success"),
    (
        "data={sources: {a: {path: arithmetic, reward: {success_at: 1.5}}}}",
        "reward.success_at (1.5) makes no rollout a success: accuracy gives 0 to 1",
    ),
    ("allocation.rounds=900", "(900) exceeds the Phase B rollouts of a shard, (Γ/shards)·(G - G0) = "),
    ("learner.offload_optimizer=true", "learner.offload_optimizer needs ZeRO, and learner.zero_stage is 0"),
    *(
        (f"reward.weights={{'{name}': 1.0}}", "unknown reward")
        for name in ("own:f[", "own:f[]", "own:f]", "own:", ":f", "own:f[a]b", "own f:g")
    ),
]
SEVERAL = [
    *(
        (f"allocation.rule=uniform allocation.{key}={value}", f"allocation.{key} ({value}) goes by results")
        for key, value in (("rounds", 4), ("stop", "hit"))
    ),
    ("learner.keep_best=pass@16", "learner.keep_best (pass@16) compares evaluations during training:"),
    ("evaluation.every=5 learner.keep_best=pass@3", "learner.keep_best (pass@3) is not measured:"),
    ("evaluation.every=5 evaluation.path=null", "evaluation.every (5) needs held-out problems"),
]
CODE_TESTS = [
    (f"reward.code_tests.{limit}", f"reward.code_tests.{limit.partition('=')[0]}")
    for limit in ("seconds=0", "seconds=601", "memory_mib=8", "columns={test: t}", "cores=2")
]
NOT_FINITE = [
    (setting, "a finite number")
    for setting in (
        "reward.weights={accuracy: .nan}",
        "learner.optimizer.learning_rate=inf",
        "reward.success_at=-.inf",
        "learner.optimizer.betas=[0.9, .nan]",
        "data={sources: {a: {path: arithmetic, weight: .inf}}}",
        "environment.verifiers={taskset: t, config: {rate: [.nan]}}",
    )
]
LORA = [
    ("rank=600", "learner.lora.rank (600) exceeds 512, the largest rank that vLLM"),
    ("dropout=0.1", "learner.lora.dropout: unknown key"),
    ("rank=16 alpha=24 model.dtype=bfloat16", "learner.lora.rank = 24/16 = 1.5 is not a power of two"),
    ("rank=8 weights.transport=nccl", "weights.transport (nccl) cannot send the adapter"),
    ("rank=8 generator.clear_cache=false", "generator.clear_cache (false) with"),
]
SLEEP = [
    ("rollout.max_staleness=2", "rollout.max_staleness (2)"),
    ("learner.workers=2", "learner.workers is 2"),
    ("generator.replicas=3", "generator.replicas 3 · generator.tensor_parallel 1 need 3"),
    ("generator.tensor_parallel=2", "generator.tensor_parallel 2 need 2"),
    ("generator.clear_cache=false", "generator.clear_cache (false)"),
    ("weights.transport=nccl", "weights.transport (nccl)"),
]
OBJECTIVE = [
    ("advantage=maxrl", "learner.objective.advantage"),
    ("advantage=pass_at_k", "learner.objective.k (None)"),
    ("k=4", "learner.objective.k (4)"),
    ("advantage=pkpo k=1", "learner.objective.k (1)"),
    ("advantage=pass_at_k k=5", "learner.objective.k (5)"),
    ("advantage=pass_at_k k=16 allocation.rule=uniform", "learner.objective.k (16)"),
    ("baseline=wald", "learner.objective.baseline (wald)"),
    ("normalisation=token advantage=dr_grpo", "learner.objective.normalisation (token)"),
    ("loss=dapo advantage=likelihood", "learner.objective.normalisation (token)"),
    ("loss=ppo", "learner.objective.loss"),
    ("loss=grpo", "learner.objective.loss"),
    ("loss=nowhere:LOSS", "learner.objective.loss"),
    ("group_weight=as_if", "learner.objective.group_weight.as_if (None)"),
    ("group_weight=size", "learner.objective.group_weight.kind"),
    ("group_weight.as_if=hit_utility", "learner.objective.group_weight.as_if (hit_utility)"),
    *((f"{key}=1", f"learner.objective.{key}: this key is gone") for key in ("ratio", "aggregate", "lambda")),
]


def named(settings: str, section: str = "") -> list[str]:
    """The settings, those without a section in `section`."""
    sections = ("model.", "weights.", "generator.", "rollout.", "learner.", "allocation.")
    return [one if one.startswith(sections) else section + one for one in settings.split()]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        *(([setting], line) for setting, line in (*KEYS, *CODE_TESTS, *NOT_FINITE)),
        *((settings.split(), line) for settings, line in SEVERAL),
        *((named(one, "learner.lora."), line) for one, line in LORA),
        *((["rollout.max_staleness=0", "generator.sleep=step", one], line) for one, line in SLEEP),
        *((named(one, "learner.objective."), line) for one, line in OBJECTIVE),
    ],
)
def test_each_mistake_is_one_line_with_key_value_and_reason(settings: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("tiny", settings)
    assert str(caught.value).startswith("tiny: ")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", GONE)
def test_a_key_that_is_gone_stands_in_older_runs_with_the_value_that_holds_and_is_refused_with_another(
    key: str,
) -> None:
    section = key.rpartition(".")[0]
    prefixes = ("", "data.sources.a.") if section.startswith("reward") else ("",)
    for prefix in prefixes:
        base = ["data={sources: {a: {path: arithmetic}}}"] if prefix else []
        for same in GONE[key].same:
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
        "advantage=pkpo k=16 allocation.rule=uniform",  # uniform sampling makes no group smaller than G
        *(
            f"learner.offload_optimizer=true {more}"
            for more in ("learner.zero_stage=1", "model.dtype=bfloat16")
        ),
        "learner.lora.rank=16 learner.lora.alpha=24",  # float32 rounds nothing
    ],
)
def test_what_can_stand_together_is_accepted(settings: str) -> None:
    load("tiny", named(settings, "learner.objective."))
