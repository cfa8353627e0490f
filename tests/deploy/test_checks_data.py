"""Checks before a start: rules, rows of data, benchmarks, and the commands that use the list. What is shown
of a task: the prompt, its ends, and what right and wrong answers or programs earn."""

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from transformers import GenerationConfig, Qwen2ForCausalLM

from hora_rl.actors.coordinator.deployment import render_prompts
from hora_rl.actors.data.datasets import load_held_out
from hora_rl.actors.verifier.sandbox.sandbox import Sandbox
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.errors import ConfigError, HoraError
from hora_rl.common.load import ROOT, from_args, load
from hora_rl.deploy.checks import configuration, sources
from hora_rl.deploy.checks import task as checked_task
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.run_checks import CHECKS, check, check_all, examine, target_of
from hora_rl.deploy.checks.task import sandbox, stops, task
from hora_rl.deploy.checks.templates import templates
from hora_rl.deploy.launch.evaluation import prompts
from tests.support.chat_model import END, TEMPLATE, THINKING, chat_tokenizer
from tests.support.checks import Make, one
from tests.support.jsonl import write_lines
from tests.support.tiny_qwen2 import shape_of


def rows(path: Path, *problems: str) -> str:
    return str(write_lines(path, ({"problem": p, "answer": "1"} for p in problems)))


@pytest.mark.parametrize(
    ("problems", "warned"),
    [
        (("1+0=?",) * 4 + ("2-1=?", "2 - 1 = ?"), ["3 rows of 6 have the problem of an earlier one"]),
        (("1+0=?", "\ud800", "\N{GRINNING FACE}"), ["left out: {}:2: 'problem' holds U+D800, half of a"]),
        (("1+0=?", *[" "] * 9), [*["left out: {}:"] * 5, "9 rows are left out"]),
    ],
)
def test_strange_rows_are_named_the_first_few_of_many(
    problems: tuple[str, ...], warned: list[str], config: Make, tmp_path: Path
) -> None:
    path = rows(tmp_path / "data.jsonl", *problems)
    settings = config(data={"path": path}, rollout={"prompts_per_batch": 1, "shards": 1})
    found = [f.says for f in sources.data(Target(settings)) if f.level == "warn"]
    assert len(found) == len(warned)
    assert all(says.startswith(line.format(path)) for says, line in zip(found, warned, strict=True)), found


def test_the_layouts_of_the_rows_and_of_the_held_out_ones_are_said(config: Make, tmp_path: Path) -> None:
    gsm8k = ({"question": f"{n}+1=?", "answer": f"#### {n + 1}"} for n in (1, 2))
    verl = [{"prompt": "3+4=?", "reward_model": {"ground_truth": "7"}}]
    path = str(write_lines(tmp_path / "gsm8k.jsonl", gsm8k))
    held = str(write_lines(tmp_path / "verl.jsonl", verl))
    settings = config(
        data={"path": path}, evaluation={"path": held}, rollout={"prompts_per_batch": 1, "shards": 1}
    )
    said = [f.says for f in sources.data(Target(settings)) if f.what == "layout"]
    assert said == [
        "evaluation: verl, as DAPO-Math-17k; answer or tests in reward_model.ground_truth",
        "GSM8K; answer behind ####",
    ]


def test_tokens_are_counted_over_the_prompts_that_are_used(config: Make, tmp_path: Path) -> None:
    path = rows(tmp_path / "data.jsonl", "1+0=?", "1+" * 30 + "1=?")
    settings = config(data={"path": path}, rollout={"prompts_per_batch": 1, "shards": 1, "group_size": 16})
    *_, warned, used = sources.data(Target(settings))
    assert warned.says == "left out: 1 prompt longer than rollout.max_prompt_tokens = 32"
    shortest = used.says.removeprefix("1 prompt of ").split(" to ")
    assert used.says.startswith("1 prompt of ")
    assert shortest[0] == shortest[1].removesuffix(" tokens"), "one prompt has one length"
    with pytest.raises(HoraError, match="1 usable prompt, fewer than"):
        list(sources.data(Target(config(data={"path": path}))))


def test_training_problems_of_a_benchmark_are_a_warning(config: Make) -> None:
    rollout = {"prompts_per_batch": 1, "shards": 1, "max_prompt_tokens": 400, "max_response_tokens": 99}
    settings = config(data={"path": str(ROOT / "evaluation/data/aime25.jsonl")}, rollout=rollout)
    warned = [f.says for f in sources.data(Target(settings)) if f.level == "warn"]
    leaks = [w for w in warned if w.startswith("training row")]
    place = f"{settings.data.path}:1"
    assert leaks[0] == f"training row {place} equals {place}"
    assert len(leaks) == 5
    assert "30 training rows equal benchmark problems; Pass@K on these measures memory" in warned
    assert [f.level for f in sources.data(Target(config()))] == ["ok"], "arithmetic is in none"


def test_check_all_shows_every_finding_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    (tmp_path / "token").touch(mode=0o600)
    settings = [f"run.folder={tmp_path}", "queue.url=redis://127.0.0.1:1", "telemetry.http_host=0.0.0.0"]
    settings += ["telemetry.http_port=0"]
    findings = list(examine(target_of("tiny", settings)))
    assert len(findings) >= len(CHECKS) - 5, "some have nothing to say of a configuration"
    assert check_all("tiny", settings) is False
    out = capsys.readouterr().out
    # What changes from one moment to the next, such as free memory, is left out.
    assert all(f.fix in out and (f.says in out or f.what == "memory") for f in findings)
    assert "1 would stop a run; 1 to look at" in out


def test_every_command_goes_through_the_one_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A check that is added to the list is met by `check`, `run`, `train` and `eval`."""
    from hora_rl.deploy.checks import run_checks as checks
    from hora_rl.deploy.launch.cluster import train_on_cluster
    from hora_rl.deploy.launch.local import evaluate_local, run_local

    seen: list[str] = []

    def added(target: Target) -> Iterator[Finding]:
        seen.append(target.command)
        yield Finding("fail", "added", "a new reason", "a new remedy")

    monkeypatch.setattr(checks, "working", lambda *_: nullcontext(lambda name: None))
    monkeypatch.setattr(checks, "CHECKS", (added,))
    config = load("tiny", [f"run.folder={tmp_path}"])
    for start in (
        lambda: checks.check("tiny", ()),
        lambda: run_local("tiny", [f"run.folder={tmp_path}"]),
        lambda: train_on_cluster(config),
        lambda: evaluate_local(config, ["amc23"], 1, (1,), tmp_path),
    ):
        with pytest.raises(ConfigError, match="added: a new reason; a new remedy"):
            start()
    assert checks.check_all("tiny", ()) is False
    assert checks.check_all("deploy/hora.yaml", ()) is False
    assert seen == ["run", "run", "train", "eval", "run", "train"]


def test_rounds_that_stop_at_nothing_are_advised_against(config: Make) -> None:
    for allocation, advised in (({"rounds": 4}, True), ({"rounds": 4, "stop": "hit"}, False), ({}, False)):
        said = one(configuration.names, Target(config(allocation=allocation))).get("allocation.rounds")
        assert (said is not None) == advised
        assert said is None or (said.level, "allocation.stop: hit" in said.fix) == ("warn", True)


@pytest.mark.parametrize(("steps", "warned"), [(2, True), (3, False)])
def test_rests_in_a_run_of_one_epoch_are_a_warning(
    steps: int, warned: bool, config: Make, tmp_path: Path
) -> None:
    path = rows(tmp_path / "data.jsonl", *(f"{n}+1=?" for n in range(4)))
    data = {"path": path, "rest": ["solved"]}
    shape = {"prompts_per_batch": 2, "shards": 1}
    found = one(sources.data, Target(config(data=data, rollout=shape, learner={"steps": steps})))
    assert (found["data"].level == "warn") == warned
    assert ("data.rest (solved) changes nothing: 2 steps of 2" in found["data"].says) == warned


def test_a_held_out_problem_beyond_the_limit_is_refused_before_a_start(config: Make, tmp_path: Path) -> None:
    path = rows(tmp_path / "held-out.jsonl", "1+0=?", "1+" * 30 + "1=?")
    with pytest.raises(ConfigError, match=r"1 of 2 prompts are longer than rollout.max_prompt_tokens = 32"):
        list(sources.data(Target(config(evaluation={"path": path}))))


NO_FUNCTION = "a text"


def rising(posterior, level):  # type: ignore[no-untyped-def]
    return posterior.mean + level


def scalar(posterior, level):  # type: ignore[no-untyped-def]
    return 0.5


def broken(posterior, level):  # type: ignore[no-untyped-def]
    return {}[level.shape]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["rollout.prompts_per_batch=4", "rollout.shards=4"], "rollout.shards"),
        (["allocation.max_group_size=16"], "allocation.max_group_size"),
        (["allocation.max_group_size=17"], None),
        (["allocation.max_group_size=16", "allocation.rule=uniform"], None),
        (["learner.optimizer.warmup_steps=9", "learner.steps=9"], "learner.optimizer.warmup_steps"),
    ],
)
def test_what_has_no_effect_is_a_warning(settings: list[str], key: str | None) -> None:
    found = configuration.names(Target(load("tiny", settings)))
    assert [f.what for f in found if f.level == "warn"] == ([key] if key else [])


OWN = "tests.learner.test_estimator"
RULE, ADVANTAGE, WEIGHT = "allocation.rule", "learner.objective.advantage", "learner.objective.group_weight"


def checked(key: str, value: str) -> None:
    list(configuration.names(Target(load("tiny", ["allocation.rule=uniform", f"{key}={value}"]))))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (RULE, f"{__name__}:rising", "its marginal gain rises from level 0 to 1"),
        (RULE, f"first_hit({__name__}:rising)", "its marginal gain rises from level 0 to 1"),
        (RULE, f"{__name__}:scalar", "must return shape"),
        (RULE, f"{__name__}:broken", "raised KeyError"),
        (RULE, f"{__name__}:NO_FUNCTION", "is no function"),
        (ADVANTAGE, f"{OWN}:nan_without_a_hit", "must be finite"),
        (ADVANTAGE, "nowhere:f", "cannot load 'nowhere:f'"),
        (WEIGHT, "{as_if: hit_utilty}", r"as_if \(hit_utilty\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_would_end_a_run_later_is_refused_by_the_check(key: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        checked(key, value)
    assert str(caught.value).startswith(key)
    assert "\n" not in str(caught.value)


def test_a_function_of_ones_own_that_serves_passes() -> None:
    checked(ADVANTAGE, f"{OWN}:sum_of_hits")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder under the form of Qwen2.5's chat template, and problems beside it."""
    save_model(tmp_path / "model")
    rows = ({"problem": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(80))
    write_lines(tmp_path / "problems.jsonl", rows)
    return tmp_path


def save_model(folder: Path, template: str = TEMPLATE) -> None:
    tokenizer = chat_tokenizer(template)
    tokenizer.save_pretrained(folder)
    shape = shape_of(len(tokenizer), 8, 8, 1, 1, 1, max_position_embeddings=4096)
    Qwen2ForCausalLM(shape).save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.convert_tokens_to_ids(END)).save_pretrained(folder)


def of_folder(folder: Path, **sections: Any) -> Config:
    paths = {"model": {"path": str(folder / "model")}, "data": {"path": str(folder / "problems.jsonl")}}
    return from_args(paths | sections)


def findings(config: Config) -> dict[str, Finding]:
    target = Target(config)
    return {f.what: f for f in (*stops(target), *task(target))}


def test_the_readme_s_minimal_configuration_asks_for_what_it_rewards(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text().split("## Your own model and data")[1].split("```")[1]
    raw = yaml.safe_load(text.removeprefix("yaml"))
    assert "system" not in raw["data"], "the example is minimal"
    raw["model"]["path"], raw["data"]["path"] = str(folder / "model"), str(folder / "problems.jsonl")
    raw["evaluation"]["path"] = raw["data"]["path"]
    (folder / "mine.yaml").write_text(yaml.safe_dump(raw))
    check(str(folder / "mine.yaml"), [], elsewhere=True)
    shown = capsys.readouterr().out
    assert "<think>reasoning process</think><answer>final answer</answer>" in shown
    assert "stop tokens: <|endoftext|> (256), <|im_end|> (258)" in shown
    assert "right answer: format 1, accuracy 1: reward 1, a success" in shown
    assert "wrong answer: format 1, accuracy 0: reward 0.5, no success" in shown


@pytest.mark.parametrize(
    ("template", "reward", "right"),
    [
        (TEMPLATE, {"answer": "boxed"}, "\n      | \\boxed{1}"),
        (THINKING, {"answer": "boxed"}, "\n      | …</think>\n      | \n      | \\boxed{1}"),
        (THINKING, {"answer": "final"}, "The answer is 1"),
        (THINKING, {}, "\n      | …</think><answer>1</answer>"),
        (TEMPLATE, {"answer": "tests.system.own_reward:last_word"}, "\n      | 1"),
        (TEMPLATE, {"weights": {"accuracy": 1.0}, "answer": "auto"}, r"\boxed{1}"),
    ],
)
def test_a_right_answer_is_shown_in_the_form_that_is_asked_for_and_earns_everything(
    folder: Path, template: str, reward: dict[str, Any], right: str
) -> None:
    save_model(folder / "model", template)
    found = findings(of_folder(folder, reward=reward))
    assert "accuracy 1: reward 1, a success" in found["right answer"].says
    assert right in found["right answer"].says
    assert found["right answer"].level == found["wrong answer"].level == "ok"
    assert "accuracy 0" in found["wrong answer"].says
    assert "no success" in found["wrong answer"].says


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        *((name, "1") for name in ("tests.system.own_reward:last_word", "lenient", "final", "auto")),
        ("tags", "<think>…</think><answer>1</answer>"),
        ("boxed", r"\boxed{1}"),
    ],
)
def test_text_without_chat_is_shown_as_its_tokens_and_answered_as_its_extractor_takes_it(
    folder: Path, answer: str, right: str
) -> None:
    few = "1 + 1 = 2\n3 + 4 = 7\n{problem} ="
    data = {"path": str(folder / "problems.jsonl"), "chat": False, "template": few, "system": "Answer."}
    made = of_folder(folder, data=data, reward={"weights": {"accuracy": 1.0}, "answer": answer})
    found = findings(made)
    tokens = render(load_tokenizer(made.model.path), "What is 0 + 1?", made.data)
    assert f"{len(tokens)} tokens, the last '='" in found["prompt"].says
    assert found["prompt"].says.endswith("      | 3 + 4 = 7\n      | What is 0 + 1? =")
    assert found["right answer"].says == f"accuracy 1: reward 1, a success\n      | {right}"
    assert found["wrong answer"].says.startswith("accuracy 0: reward 0, no success\n      | ")


def test_a_reward_that_gives_a_gold_answer_no_success_or_fails_is_found_before_a_run(folder: Path) -> None:
    def found_with(own: str) -> dict[str, Finding]:
        return findings(of_folder(folder, reward={"weights": {own: 1.0}, "success": own}))

    right = found_with("tests.system.own_reward:brevity")["right answer"]
    assert right.level == "warn"
    assert "look at reward.answer, reward.success and reward.success_at" in right.fix
    with pytest.raises(ConfigError, match="scoring an answer to .*:1 failed: .*broken.* no reward today"):  # noqa: RUF043
        found_with("tests.system.own_reward:broken")


def test_what_a_terminal_would_obey_is_shown_and_not_done(folder: Path) -> None:
    write_lines(folder / "problems.jsonl", [{"problem": "\x1b[2J What is 1 + 1?", "answer": "2"}])
    shown = findings(of_folder(folder))["prompt"].says
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown


PLUS = {"problem": "Read a number and print it plus one.", "tests": [{"input": "1\n", "output": "2\n"}]}
SOLUTION = "print(int(input()) + 1)"


def programs(folder: Path, *rows: dict[str, Any], **reward: Any) -> Config:
    """A configuration for these rows, judged by their tests."""
    write_lines(folder / "problems.jsonl", rows)
    small, weights = {"prompts_per_batch": 1, "shards": 1}, {"format": 0.5, "code_tests": 0.5}
    return of_folder(folder, rollout=small, reward={"weights": weights} | reward)


def test_right_and_wrong_programs_are_run_before_a_gpu_is_spent_and_missing_ones_said(folder: Path) -> None:
    found = findings(programs(folder, {**PLUS, "solution": SOLUTION}))
    assert found["prompt"].says.startswith(f"{folder / 'problems.jsonl'}:1, 1 test, ")
    assert "the program, as a code block, in <answer> </answer> tags" in found["prompt"].says
    right = found["right answer"]
    assert right.says.startswith("format 1, code_tests 1: reward 1, a success\n")
    assert "<think>…</think><answer>```python\n      | print(int(input()) + 1)" in right.says
    assert found["wrong answer"].says.startswith("format 1, code_tests 0: reward 0.5, no success")
    assert {f.level for f in found.values()} == {"ok"}
    assert found["solutions"].says == "1 of the first 1 solution pass their tests"
    untagged = {"weights": {"code_tests": 1}, "answer": "final"}
    found = findings(programs(folder, {**PLUS, "solution": SOLUTION}, **untagged))
    assert "in a code block that starts with ```python" in found["prompt"].says
    assert "\n      | ```python\n      | print(int(input()) + 1)\n      | ```" in found["right answer"].says
    found = findings(programs(folder, PLUS))
    assert found["right answer"].level == "warn", "no program: its tests are not tried"
    assert "reward.code_tests.columns" in found["right answer"].fix
    assert "code_tests 0" in found["wrong answer"].says


def test_rows_whose_own_program_does_not_pass_are_named_with_the_libraries_it_lacks(folder: Path) -> None:
    right, wrong = {**PLUS, "solution": SOLUTION}, {**PLUS, "solution": "print(7)"}
    wanting = {**PLUS, "solution": "import math, numpy.linalg\nfrom pandas import NA\n" + SOLUTION}
    found = list(task(Target(programs(folder, right, PLUS, wrong, wanting))))
    solutions = [f for f in found if f.what == "solutions"]
    places = [f"{folder / 'problems.jsonl'}:{line}: its own" for line in (3, 4)]
    assert all(f.says.startswith(begin) for f, begin in zip(solutions, [*places, "1 of "], strict=True))
    assert {f.level for f in solutions} == {"warn"}
    says = solutions[1].says
    assert says.endswith("(it imports numpy, pandas: programs have Python's standard library alone)")


def test_tests_that_cannot_be_run_stop_before_the_run_does(folder: Path) -> None:
    row = {"problem": "f", "tests": ["assert f(len) == 1"], "solution": "def f(x): return 1"}
    fine = {"problem": "g", "tests": ["assert g(1) == 1"], "solution": "def g(x): return x"}
    with pytest.raises(ConfigError, match=r"problems.jsonl:2: .*, problem 'f'"):
        findings(programs(folder, fine, row))


def test_the_layers_of_this_machine_are_said_where_programs_are_run_and_too_few_fail_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(*without: str) -> Finding:
        monkeypatch.setattr(checked_task, "Sandbox", lambda: Sandbox(without=without))
        [found] = examine(Target(programs(folder, PLUS)), [sandbox])
        return found

    assert sandbox in CHECKS
    assert not list(sandbox(Target(programs(folder, PLUS, weights={"format": 1.0}, success="format"))))
    assert (checked().level, "seccomp" in checked().says) == ("ok", True)
    assert "without namespaces: switched off; without uid: switched off" in checked("namespaces", "uid").says
    failed = checked("seccomp")
    assert (failed.level, "seccomp does not hold" in failed.line) == ("fail", True)


@pytest.fixture
def beyond(tmp_path: Path) -> Path:
    """The demo's model, whose tokenizer has one token more than the model has rows."""
    folder = Path(shutil.copytree(ROOT / "deploy/demo/model", tmp_path / "beyond"))
    tokenizer = load_tokenizer(str(folder))
    tokenizer.add_tokens(["<tool>"])
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("key", ["row", "evaluation", "data.template", "data.system", "chat template"])
def test_a_prompt_with_a_token_that_the_model_has_no_row_for_is_refused_by_row_and_token(
    key: str, beyond: Path, tmp_path: Path
) -> None:
    asked = {"row": 1, "evaluation": 1}
    says = ["7+8=?", "7+9=? <tool>" if key in asked else "7+9=?"]
    path, changes = rows(tmp_path / "rows.jsonl", *says), [f"model.path={beyond}"]
    if key == "evaluation":
        changes += ["evaluation.every=1", f"evaluation.path={path}"]
    else:
        changes += [f"data.path={path}", "rollout.prompts_per_batch=1", "rollout.shards=1"]
    if key == "chat template":
        tokenizer = load_tokenizer(str(beyond))
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<tool>{% endfor %}"
        tokenizer.save_pretrained(beyond)
        changes.append("data.chat=true")
    elif key.startswith("data."):
        changes.append(f"{key}='<tool>{{problem}}'")
    made = load("tiny", changes)
    with pytest.raises(ConfigError, match=rf"(l:|row ){1 + asked.get(key, 0)}: .*holds '<tool>', token 262"):
        list(sources.data(Target(made)))
    if key == "evaluation":
        with pytest.raises(ConfigError, match=r"jsonl:2: .*holds '<tool>', token 262"):
            prompts(made, made.evaluated.data, load_held_out(made.evaluation, made.evaluated.data), Console())
    else:
        with pytest.raises(ConfigError, match="holds '<tool>', token 262"):
            render_prompts(made)


def test_a_stop_token_that_the_model_has_no_row_for_is_refused(beyond: Path) -> None:
    assert list(stops(Target(load("tiny", [f"model.path={beyond}"]))))
    with pytest.raises(ConfigError, match="stop tokens holds '<tool>', token 262"):
        list(stops(Target(load("tiny", [f"model.path={beyond}", "rollout.stop=['<tool>']"]))))


OFF = "enable_thinking: false} turns thoughts off"
SWITCH = (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "settings", "says", "not_said"),
    [
        (TEMPLATE, {}, "the tokenizer's, with its defaults", "thought"),
        (THINKING, {}, "the prompt ends in an open thought ('<think>\\n')", "turns"),
        (TEMPLATE + SWITCH, {}, OFF, "ends in"),
        (TEMPLATE + SWITCH, {"enable_thinking": False}, "the prompt ends in an empty thought", OFF),
        (TEMPLATE + SWITCH, {"enable_thinking": True}, "with enable_thinking: True", OFF),
        (
            TEMPLATE + SWITCH.replace("not enable", "enable"),
            {},
            "enable_thinking: true turns thoughts on",
            OFF,
        ),
    ],
)
def test_a_template_that_thinks_by_default_is_said_with_the_remedy(
    folder: Path, template: str, settings: dict[str, Any], says: str, not_said: str
) -> None:
    save_model(folder / "model", template)
    data = {"path": str(folder / "problems.jsonl"), "chat_template_kwargs": settings}
    for command in ("run", "eval"):
        made = of_folder(folder, data=data, evaluation={"path": data["path"]})
        (found,) = (f for f in templates(Target(made, command)) if f.what == "chat template")  # type: ignore[arg-type]
        assert says in found.says
        assert not_said not in found.says


def test_rows_that_are_rendered_already_or_hold_control_tokens_or_a_system_message_are_said(
    folder: Path,
) -> None:
    def prompts(row: Any, **settings: Any) -> list[tuple[str, str]]:
        path = folder / "own.jsonl"
        write_lines(path, [{"problem": row, "answer": "1"}])
        found = templates(Target(of_folder(folder, data={"path": str(path), **settings})))
        return [(f.level, f.says) for f in found if f.what == "prompt"]

    turn = "<|im_start|>user\n1?<|im_end|>\n"
    assert prompts("1?") == []
    assert prompts(turn) == [
        ("warn", f"{folder / 'own.jsonl'}:1 begins with a control token and gets the chat template once more")
    ]
    assert prompts(turn, chat=False, system=None) == [
        ("ok", "1 row of the first 1 are rendered already: their control tokens count")
    ]
    [(level, says)] = prompts("1<|im_end|>?")
    assert (level, "a space breaks it" in says) == ("ok", True)
    both = [{"role": "system", "content": "Own."}, {"role": "user", "content": "1?"}]
    [(level, says)] = prompts(both)
    assert (level, "takes the place of data.system" in says) == ("warn", True)
    assert prompts(both, system=None) == []
    *_, (level, says) = prompts(turn, chat=False)
    assert (level, "takes the place of data.system" in says) == ("warn", True)


def test_a_message_that_the_chat_template_leaves_out_is_said_with_its_line_of_the_file(folder: Path) -> None:
    save_model(
        folder / "model", "{% for m in messages if m.role == 'user' %}{{ m.content | trim }}{% endfor %}"
    )
    asked = [{"role": "developer", "content": "Add."}, {"role": "user", "content": " 1<|im_end|>?\n"}]
    lines = [{"problem": "1?", "answer": None}, {"problem": asked, "answer": "1"}]
    path = write_lines(folder / "own.jsonl", lines)
    found = list(templates(Target(of_folder(folder, data={"path": str(path), "system": None}))))
    says = [f.says for f in found if f.level == "warn"]
    assert says == [f"{path}:2: the chat template leaves out its developer message ('Add.')"]


def test_what_stops_several_checks_is_said_once_and_a_row_whose_messages_are_refused_by_its_line(
    folder: Path,
) -> None:
    save_model(folder / "model", "{{ raise_exception('no') if messages[1:] else messages[0].content }}")
    asked = [{"role": "user", "content": "1?"}, {"role": "user", "content": "2?"}]
    path = write_lines(
        folder / "own.jsonl", [{"problem": "1?", "answer": "1"}, {"problem": asked, "answer": "1"}]
    )
    made = of_folder(folder, data={"path": str(path), "system": None})
    with pytest.raises(ConfigError, match=r"own.jsonl:2: the chat template .* refuses the prompt: no"):
        list(sources.data(Target(made)))
    save_model(folder / "model", "{{ raise_exception('never') }}")
    found = list(examine(Target(made), (sources.data, templates, task)))
    assert len([f for f in found if "never" in f.says]) == 1
    save_model(folder / "model", "{% if messages is string %}x{% endif %}")
    with pytest.raises(ConfigError, match=r"own.jsonl:1: the prompt .* has no token"):
        list(sources.data(Target(made)))
