"""A study's file becomes its cells, or one line that says what is wrong with it."""

from pathlib import Path

import pytest
import yaml

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import ROOT
from research.study.cells import STUDIES, cells, has_exact_success, load_study, same_at_step_0
from research.study.curve_sources import check_kept
from research.study.stack_cells import at_once
from research.tasks.catalogue import TASKS
from tests.support.pages import blocks

GOOD = {
    "name": "mini",
    "base": "tiny",
    "seeds": [0, 1],
    "set": {"learner.steps": 3},
    "arms": {"grpo": {"allocation.rule": "uniform"}, "hora": {}},
}


def written(tmp_path: Path, **changes: object) -> str:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **changes}, sort_keys=False))
    return str(path)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_study_has_valid_cells_of_equal_budget(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, make in TASKS.items():  # stand for those that `python -m research.tasks.build` makes
        for built in (name, f"{name}-again"):
            task = tmp_path / "tasks" / built
            task.mkdir(parents=True)
            (task / "model").symlink_to(ROOT / "deploy" / "demo" / "model")
            about = make(0)[0]
            about.save(task)
            for prompts in about.sets:
                (task / f"{prompts}.jsonl").write_text('{"problem": "ab=?", "answer": "123"}\n')
    monkeypatch.chdir(tmp_path)
    study = load_study(path.stem)
    made = cells(study, tmp_path)
    for cell in made:
        if has_exact_success(cell.config):
            check_kept(cell.config)
    assert study.name == path.stem
    assert len(made) == len(study.arms) * len(study.seeds) >= 6
    assert len({c.name for c in made}) == len(made)
    size = 16 if path.stem == "facts-half" else 32
    assert {(c.config.rollout.group_size, c.config.rollout.prompts_per_batch) for c in made} == {(size, 16)}


def test_cells_come_seed_by_seed_and_carry_arm_and_seed(tmp_path: Path) -> None:
    made = cells(load_study(written(tmp_path)), tmp_path)
    assert [c.name for c in made] == ["grpo-seed0", "hora-seed0", "grpo-seed1", "hora-seed1"]
    assert [c.config.run.seed for c in made] == [0, 0, 1, 1]
    assert {c.config.allocation.rule for c in made if c.arm == "grpo"} == {"uniform"}
    assert all(c.config.learner.steps == 3 and c.config.run.folder == str(tmp_path) for c in made)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arms": {"a": {"rollout.groupsize": 4}}}, "arm a: tiny: rollout.groupsize: unknown key; did you"),
        ({"arms": {"a": {}, "b": {}}}, "arms a and b are the same experiment"),
        ({"arms": {"a": {}, "b": {"rollout.group_size": 8}}}, "cannot be compared: rollout.group_size"),
        ({"arms": {"a": {}, "b": {"evaluation.samples": 128}}}, "cannot be compared: evaluation.samples"),
        ({"set": {"evaluation.path": None}}, "evaluation.path is not set: arms are compared on held-out"),
        ({"arms": {"a": {"run.seed": 4}}}, "run.seed is set by the study itself"),
        ({"set": {"evaluation.k": [128]}}, "evaluation.k (128) must be between 1 and evaluation.samples"),
        ({"design": {"pass_at": 8}}, "design.pass_at (8) is none of those of"),
        ({"seeds": []}, "seeds: Tuple should have at least 1 item"),
        ({"seeds": [1, 1]}, "the same seed twice"),
        ({"baseline": "c"}, "baseline (c) is none of the arms (grpo, hora)"),
        ({"arm": {}}, "arm: Extra inputs are not permitted"),
        ({"name": "../up"}, "name: String should match pattern"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_in_one_line(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cells(load_study(written(tmp_path, **changes)), tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout.temperature", 0.9),
        ("allocation.budget", "tokens"),
        ("rollout.max_prompt_tokens", 16),
        ("data.limit", 10),
        ("data.split", "held-out"),
        ("data.template", "Add: {problem}"),
        ("model.dtype", "bfloat16"),
        ("learner.objective.updates_per_batch", 2),
        ("reward.max_answer_chars", 5),
    ],
)
def test_an_arm_keeps_model_data_budget_and_evaluation(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"arms a and b cannot be compared: {key}: "):
        cells(load_study(written(tmp_path, arms={"a": {}, "b": {key: value}})), tmp_path)


@pytest.mark.parametrize("text", ["{problem} 😀", "{problem}\u2028next", "{problem}\x85"])
def test_any_text_of_a_study_reaches_its_cells_as_it_is(tmp_path: Path, text: str) -> None:
    made = cells(load_study(written(tmp_path, set={"data.template": text})), tmp_path)
    assert {c.config.data.template for c in made} == {text}


def test_a_name_that_occurs_twice_is_refused_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("name: mini\nseeds: [0]\narms:\n  a: {}\n  b: {allocation.rule: uniform}\n  a: {}\n")
    with pytest.raises(ConfigError, match=r"study.yaml: not YAML: a is there twice.*line 6"):
        load_study(str(path))


def test_the_initial_policy_is_evaluated_anew_only_where_its_samples_could_differ(tmp_path: Path) -> None:
    arms = {
        "a": {},
        "rule": {
            "allocation.rule": "uniform", "rollout.pre_rollouts": 2, "learner.optimizer.learning_rate": 1e-3,
        },
        "reduced": {"generator.tensor_parallel": 2},
    }  # fmt: skip
    a, rule, other, other_seed, *_ = cells(load_study(written(tmp_path, arms=arms)), tmp_path)
    assert same_at_step_0(a.config, rule.config)
    assert same_at_step_0(a.config, other_seed.config)
    assert not same_at_step_0(a.config, other.config)


def test_as_many_cells_run_at_once_as_the_processors_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cells(load_study(written(tmp_path)), tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("research.study.stack_cells.processors", lambda: 9)
    assert at_once(made) == 4  # one engine thread and one learner thread each
    monkeypatch.setattr("research.study.stack_cells.processors", lambda: 1)
    assert at_once(made) == 1
    assert at_once([]) == 1


def test_arms_that_decide_are_trained_for_all_seeds_before_the_others(tmp_path: Path) -> None:
    arms = "arms: {a: {}, b: {allocation.rule: uniform}, c: {allocation.rule: mixed}}"
    text = f"name: s\nseeds: [1, 2]\ndesign: {{first: [c, a]}}\n{arms}\n"
    file = tmp_path / "study.yaml"
    file.write_text(text)
    made = cells(load_study(str(file)), tmp_path)
    assert [c.name for c in made] == ["a-seed1", "c-seed1", "a-seed2", "c-seed2", "b-seed1", "b-seed2"]
    file.write_text(text.replace("first: [c, a]", "exploratory: [[a, d]]"))
    with pytest.raises(ConfigError, match=r"design\.exploratory: d is none of the arms \(a, b, c\)"):
        load_study(str(file))


@pytest.mark.parametrize(
    ("design", "reason"),
    [
        ("{pass_at: 8, watched: transfer}", r"design.pass_at .8. is none of .* .1, 4, 16, 64, 256"),
        ("{watched: transfers}", r"design.watched .transfers. is none of .* .trained, transfer"),
    ],
)
@pytest.mark.parametrize("loop", [True, False])
def test_curves_that_the_task_will_not_have_are_refused_before_a_cell_runs(
    facts_folder: Path, design: str, reason: str, loop: bool
) -> None:
    arms = "arms: {a: {}, b: {allocation.rule: uniform}}"
    (facts_folder / "s.yaml").write_text(f"name: s\nseeds: [1]\ndesign: {design}\nset: {FACTS}\n{arms}\n")
    with pytest.raises(ConfigError, match=reason):
        cells(load_study("s.yaml"), facts_folder, loop=loop)


def test_arms_whose_success_is_found_in_two_ways_are_refused(facts_folder: Path) -> None:
    arms = "arms: {full: {}, adapter: {learner.lora: {rank: 8}}}"
    (facts_folder / "s.yaml").write_text(f"name: s\nseeds: [1]\nset: {FACTS}\n{arms}\n")
    with pytest.raises(ConfigError, match="of arms full and adapter only one has its success computed"):
        cells(load_study("s.yaml"), facts_folder)


FACTS = "{model.path: tasks/facts/model, data.path: tasks/facts/trained.jsonl, evaluation.path: null}"


@pytest.fixture
def facts_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    task = tmp_path / "tasks" / "facts"
    task.mkdir(parents=True)
    (task / "model").symlink_to(ROOT / "deploy" / "demo" / "model")
    TASKS["facts"](0)[0].save(task)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_study_of_the_readme_has_its_cells(tmp_path: Path) -> None:
    [block] = [b for b in blocks("research/README.md") if b.kind == "yaml"]
    (tmp_path / "my-study.yaml").write_text(block.text)
    assert len(cells(load_study(str(tmp_path / "my-study.yaml")), tmp_path)) == 2 * 5
