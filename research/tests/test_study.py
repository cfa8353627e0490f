"""A study's file becomes its cells, or one line that names its fault."""

from pathlib import Path

import pytest
import yaml

from hora_rl.allocator.priors import PROBES
from hora_rl.common.config import Config
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.load import ROOT, check_paths, load
from hora_rl.deploy.checks.configuration import context, model, names
from hora_rl.deploy.checks.run_checks import target_of
from hora_rl.deploy.checks.sources import data
from research.study.cells import (
    PRESETS,
    STUDIES,
    Cell,
    cells,
    has_exact_success,
    load_base,
    load_study,
)
from research.study.curve_sources import check_kept, exact_curve
from research.study.loop import check
from research.study.stack_cells import at_once
from research.tasks.catalogue import TASKS
from research.tasks.pretrained import arithmetic, multiples, problems
from tests.support.pages import blocks

GOOD = {
    "name": "mini",
    "base": "tiny",
    "seeds": [0, 1],
    "set": {"learner.steps": 3},
    "arms": {"grpo": {"allocation.rule": "uniform"}, "hora": {}},
}
FACTS = {
    "model.path": "tasks/facts/model",
    "data.path": "tasks/facts/trained.jsonl",
    "evaluation.path": None,
}
ON_THE_STACK = ("facts-stack", "facts-stack-sync", "hora-vs-grpo", "smollm2-stack")


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with every task as `python -m research.tasks.build` makes it, with an untrained model."""
    made = {f"{name}{again}": make(0)[0] for name, make in TASKS.items() for again in ("", "-again")}
    real = {"smollm2": arithmetic(0), "multiples": multiples(0), "problems": problems(0)}
    for name, task in (made | real).items():
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True)
        (folder / "model").symlink_to(ROOT / "deploy" / "demo" / "model")
        task.save(folder)
        for prior in PROBES:
            (folder / f"{prior}.npz").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(tmp_path: Path, *, loop: bool = False, **changes: object) -> list[Cell]:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **changes}, sort_keys=False))
    return cells(load_study(str(path)), tmp_path, loop=loop)


@pytest.mark.parametrize(
    "path", sorted(set(STUDIES.glob("*.yaml")) - set(STUDIES.glob("*-first.yaml"))), ids=lambda p: p.stem
)
def test_every_shipped_study_has_valid_cells_of_equal_budget(path: Path, tasks: Path) -> None:
    study, loop = load_study(path.stem), path.stem not in ON_THE_STACK
    every = cells(study, tasks, loop=loop)
    for cell in every:
        if loop:
            check(cell.config)
        elif has_exact_success(cell.config):
            check_kept(cell.config)
    assert study.name == path.stem
    assert len({c.name for c in every}) == len(every) == len(study.arms) * len(study.seeds)
    assert len(every) >= (2 if "pilot" in path.stem else 3)
    smaller = {"facts-half": 16, "smollm2": 16, "multiples": 16, "problems": 8}
    size = next((n for part, n in smaller.items() if part in path.stem), 32)
    assert {c.config.rollout.group_size * c.config.rollout.prompts_per_batch for c in every} == {size * 16}


@pytest.mark.parametrize("name", TASKS)
def test_the_preset_of_a_task_stands_every_check_once_its_task_is_built(
    name: str, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(str(PRESETS / f"{name}.yaml"))
    result = [f for check in (model, names, context, data) for f in check(target)]
    assert {f.level for f in result} <= {"ok", "warn"}, result
    assert any("150" in f.says or "300" in f.says for f in result), result
    monkeypatch.chdir(tasks / "tasks")
    with pytest.raises(ConfigError, match=rf"model\.path \(.*tasks/{name}/model\)"):
        check_paths(load_base(name))


def test_cells_come_seed_by_seed_and_carry_arm_and_seed(tmp_path: Path) -> None:
    [readme] = [b for b in blocks("research/README.md") if b.kind == "yaml"]
    assert len(made(tmp_path, **yaml.safe_load(readme.text))) == 2 * 5
    result = made(tmp_path)
    assert [c.name for c in result] == ["grpo-seed0", "hora-seed0", "grpo-seed1", "hora-seed1"]
    assert [c.config.run.seed for c in result] == [0, 0, 1, 1]
    assert {c.config.allocation.rule for c in result if c.arm == "grpo"} == {"uniform"}
    assert all(c.config.learner.steps == 3 and c.config.run.folder == str(tmp_path) for c in result)
    text = "{problem} 😀\u2028next\x85"
    assert {c.config.data.template for c in made(tmp_path, set={"data.template": text})} == {text}
    arms = {"a": {}, "b": {"allocation.rule": "uniform"}, "c": {"allocation.rule": "mixed"}}
    result = made(tmp_path, arms=arms, design={"first": ["c", "a"]})
    assert [c.name for c in result] == ["a-seed0", "c-seed0", "a-seed1", "c-seed1", "b-seed0", "b-seed1"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arms": {"a": {"rollout.groupsize": 4}}}, "rollout.groupsize"),
        ({"arms": {"a": {}, "b": {}}}, "arms a and b"),
        ({"set": {"evaluation.path": None}}, "evaluation.path"),
        ({"arms": {"a": {"run.seed": 4}}}, "run.seed"),
        ({"set": {"evaluation.k": [128]}}, "evaluation.k (128)"),
        ({"design": {"dynamic": ["grpo"]}}, "design.dynamic"),
        ({"design": {"pass_at": 8}}, "design.pass_at (8)"),
        ({"design": {"exploratory": [["hora", "d"]]}}, "design.exploratory: d "),
        ({"seeds": []}, "seeds: "),
        ({"seeds": [1, 1]}, "seeds: "),
        ({"baseline": "c"}, "baseline: c "),
        ({"arm": {}}, "arm: "),
        ({"name": "../up"}, "name: "),
    ],
)  # fmt: skip
def test_a_study_that_compares_nothing_is_refused_in_one_line(
    tmp_path: Path, changes: dict, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, **changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("rollout.temperature", 0.9), ("rollout.max_prompt_tokens", 16)),
        *(("learner.objective.updates_per_batch", 2), ("model.dtype", "bfloat16")),
        *(("data.limit", 10), ("data.split", "held-out")),
        *(("evaluation.samples", 128), ("reward.time_limit_s", 9)),
    ],
)
def test_an_arm_keeps_model_data_budget_and_evaluation(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        made(tmp_path, arms={"a": {}, "b": {key: value}})


def test_an_arm_may_divide_the_rollouts_of_a_batch_otherwise(tmp_path: Path) -> None:
    twice = {"rollout.prompts_per_batch": 32, "rollout.group_size": 16}
    made(tmp_path, arms={"a": {"rollout.prompts_per_batch": 64, "rollout.group_size": 8}, "b": twice})
    with pytest.raises(ConfigError, match=r"Γ·G: \d+, 512"):
        made(tmp_path, arms={"a": {"rollout.prompts_per_batch": 8, "rollout.group_size": 8}, "b": twice})


def test_as_many_cells_run_at_once_as_the_processors_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    for processors, expected in ((9, 4), (1, 1)):  # one engine thread and one learner thread each
        monkeypatch.setattr("research.study.stack_cells.processors", lambda n=processors: n)
        assert at_once(made(tmp_path)) == expected
    assert at_once([]) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"design": {"pass_at": 8, "watched": "transfer"}}, "design.pass_at"),
        ({"design": {"watched": "transfers"}}, "design.watched"),
        ({"design": {"watched": "transfers"}, "loop": True}, "design.watched"),
        ({"arms": {"full": {}, "adapter": {"learner.lora": {"rank": 8}}}}, "full and adapter"),
    ],
)
def test_curves_that_cannot_be_computed_are_refused_before_a_cell_runs(
    tasks: Path, changes: dict, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        made(tasks, set=FACTS, **changes)


def config_of(out: Path, **more: object) -> Config:
    settings = {**FACTS, "run.folder": out, "run.name": "one", "learner.steps": 60, **more}
    return load_base("facts", [f"{key}={'null' if v is None else v}" for key, v in settings.items()])


def test_success_is_exact_for_a_recall_task_that_nothing_else_evaluates(tasks: Path) -> None:
    assert has_exact_success(config_of(tasks))
    assert not has_exact_success(config_of(tasks, **{"evaluation.path": "tasks/facts/transfer.jsonl"}))
    assert not has_exact_success(load("tiny", ["evaluation.path=null"]))


def test_a_curve_with_a_hole_is_refused_before_and_after_the_run(tasks: Path) -> None:
    config = config_of(tasks, **{"learner.checkpoint_every": 5})
    with pytest.raises(ConfigError, match=r"keep_checkpoints.* 12"):
        check_kept(config)
    check_kept(config_of(tasks, **{"learner.checkpoint_every": 5, "learner.keep_checkpoints": 12}))
    for step in (55, 60):
        (config.run.path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    with pytest.raises(RunError, match="step 5;"):
        exact_curve(config)
