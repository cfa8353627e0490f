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
from hora_rl.common.errors import ConfigError
from hora_rl.common.load import ROOT, from_args, load
from hora_rl.deploy.checks import configuration, sources
from hora_rl.deploy.checks import task as checked_task
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.run_checks import CHECKS, check, check_all, examine, target_of
from hora_rl.deploy.checks.sources import templates
from hora_rl.deploy.checks.task import sandbox, stops, task
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
        (("1+0=?",) * 4 + ("2-1=?", "2 - 1 = ?"), ["3 rows of 6"]),
        (("1+0=?", "\ud800", "\N{GRINNING FACE}"), ["{}:2: 'problem'"]),
        (("1+0=?", *[" "] * 9), [*["{}:"] * 5, "9 rows"]),
    ],
)
def test_strange_rows_are_named_the_first_few_of_many(
    problems: tuple[str, ...], warned: list[str], config: Make, tmp_path: Path
) -> None:
    path = rows(tmp_path / "data.jsonl", *problems)
    settings = config(data={"path": path}, rollout={"prompts_per_batch": 1, "shards": 1})
    says = [f.says for f in sources.data(Target(settings)) if f.level == "warn"]
    assert len(says) == len(warned)
    assert all(named.format(path) in text for text, named in zip(says, warned, strict=True)), says


def test_the_layouts_of_the_rows_and_of_the_held_out_ones_are_named(config: Make, tmp_path: Path) -> None:
    gsm8k = ({"question": f"{n}+1=?", "answer": f"#### {n + 1}"} for n in (1, 2))
    verl = [{"prompt": "3+4=?", "reward_model": {"ground_truth": "7"}}]
    path = str(write_lines(tmp_path / "gsm8k.jsonl", gsm8k))
    held = str(write_lines(tmp_path / "verl.jsonl", verl))
    small = {"prompts_per_batch": 1, "shards": 1}
    settings = config(data={"path": path}, evaluation={"path": held}, rollout=small)
    evaluation, training = [f.says for f in sources.data(Target(settings)) if f.what == "layout"]
    assert evaluation.startswith("evaluation: verl")
    assert training.startswith("GSM8K")


def test_tokens_are_counted_over_the_prompts_that_are_used(config: Make, tmp_path: Path) -> None:
    path = rows(tmp_path / "data.jsonl", "1+0=?", "1+" * 30 + "1=?")
    settings = config(data={"path": path}, rollout={"prompts_per_batch": 1, "shards": 1, "group_size": 16})
    *_, warned, used = sources.data(Target(settings))
    assert "rollout.max_prompt_tokens = 32" in warned.says
    shortest, longest = used.says.removeprefix("1 prompt of ").removesuffix(" tokens").split(" to ")
    assert shortest == longest, "one prompt has one length"
    with pytest.raises(ConfigError, match=r"rollout\.prompts_per_batch"):
        list(sources.data(Target(config(data={"path": path}))))


def test_training_problems_of_a_benchmark_are_a_warning(config: Make) -> None:
    rollout = {"prompts_per_batch": 1, "shards": 1, "max_prompt_tokens": 400, "max_response_tokens": 99}
    settings = config(data={"path": str(ROOT / "evaluation/data/aime25.jsonl")}, rollout=rollout)
    warned = [f.says for f in sources.data(Target(settings)) if f.level == "warn"]
    place = f"{settings.data.path}:1"
    assert place in warned[0]
    assert sum(" equals " in text for text in warned) == 5
    assert any(text.startswith("30 ") for text in warned), "the number of all"
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
        with pytest.raises(ConfigError, match="a new remedy"):
            start()
    assert checks.check_all("tiny", ()) is False
    assert checks.check_all("deploy/hora.yaml", ()) is False
    assert seen == ["run", "run", "train", "eval", "run", "train"]


@pytest.mark.parametrize(("steps", "warned"), [(2, True), (3, False)])
def test_rests_in_a_run_of_one_epoch_are_a_warning(
    steps: int, warned: bool, config: Make, tmp_path: Path
) -> None:
    path = rows(tmp_path / "data.jsonl", *(f"{n}+1=?" for n in range(4)))
    data = {"path": path, "rest": ["solved"]}
    shape = {"prompts_per_batch": 2, "shards": 1}
    finding = one(sources.data, Target(config(data=data, rollout=shape, learner={"steps": steps})))["data"]
    assert (finding.level == "warn", "data.rest" in finding.says) == (warned, warned)


def test_a_held_out_problem_beyond_the_limit_is_refused_before_a_start(config: Make, tmp_path: Path) -> None:
    path = rows(tmp_path / "held-out.jsonl", "1+0=?", "1+" * 30 + "1=?")
    with pytest.raises(ConfigError, match=r"rollout\.max_prompt_tokens"):
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
        (["allocation.rounds=4"], "allocation.rounds"),
        (["allocation.rounds=4", "allocation.stop=hit"], None),
    ],
)
def test_what_has_no_effect_is_a_warning(settings: list[str], key: str | None) -> None:
    findings = configuration.names(Target(load("tiny", settings)))
    assert [f.what for f in findings if f.level == "warn"] == ([key] if key else [])


OWN = "tests.learner.test_estimator"
RULE, ADVANTAGE, WEIGHT = "allocation.rule", "learner.objective.advantage", "learner.objective.group_weight"


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        (RULE, f"{__name__}:rising", "level 0 to 1"),
        (RULE, f"first_hit({__name__}:rising)", "level 0 to 1"),
        (RULE, f"{__name__}:scalar", "shape"),
        (RULE, f"{__name__}:broken", "KeyError"),
        (RULE, f"{__name__}:NO_FUNCTION", "NO_FUNCTION"),
        (ADVANTAGE, f"{OWN}:nan_without_a_hit", "finite"),
        (ADVANTAGE, "nowhere:f", "nowhere:f"),
        (ADVANTAGE, f"{OWN}:sum_of_hits", None),
        (WEIGHT, "{as_if: hit_utilty}", r"as_if \(hit_utilty\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_would_end_a_run_later_is_refused_by_the_check(key: str, value: str, named: str | None) -> None:
    target = Target(load("tiny", ["allocation.rule=uniform", f"{key}={value}"]))
    if named is None:
        assert list(configuration.names(target))
        return
    with pytest.raises(ConfigError, match=named) as caught:
        list(configuration.names(target))
    assert str(caught.value).startswith(key)
    assert "\n" not in str(caught.value)


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
    assert "<answer>final answer</answer>" in shown
    assert "<|im_end|> (258)" in shown
    assert "right answer: format 1, accuracy 1: reward 1, a success" in shown
    assert "wrong answer: format 1, accuracy 0: reward 0.5, no success" in shown


FEW = {"chat": False, "template": "1 + 1 = 2\n3 + 4 = 7\n{problem} =", "system": "Answer."}
LAST_WORD = "tests.system.own_reward:last_word"


@pytest.mark.parametrize(
    ("template", "answer", "right"),
    [
        (TEMPLATE, "boxed", "\\boxed{1}"),
        (THINKING, "boxed", "…</think>\n      | \n      | \\boxed{1}"),
        (THINKING, "final", "…</think>\n      | \n      | The answer is 1"),
        (THINKING, "tags", "…</think><answer>1</answer>"),
        (TEMPLATE, LAST_WORD, "1"),
        (TEMPLATE, "auto", r"\boxed{1}"),
        *((None, name, "1") for name in (LAST_WORD, "lenient", "final", "auto")),
        (None, "tags", "<think>…</think><answer>1</answer>"),
        (None, "boxed", r"\boxed{1}"),
    ],
)
def test_a_right_answer_is_shown_in_the_form_that_is_asked_for_and_earns_everything(
    folder: Path, template: str | None, answer: str, right: str
) -> None:
    """With a chat template, and in text that is continued."""
    data = {"path": str(folder / "problems.jsonl")} | (FEW if template is None else {})
    if template is not None:
        save_model(folder / "model", template)
    made = of_folder(folder, data=data, reward={"weights": {"accuracy": 1.0}, "answer": answer})
    shown = findings(made)
    tokens = render(load_tokenizer(made.model.path), "What is 0 + 1?", made.data)
    assert f"{len(tokens)} tokens, the last " in shown["prompt"].says
    assert template is not None or shown["prompt"].says.endswith("3 + 4 = 7\n      | What is 0 + 1? =")
    says = shown["right answer"].says
    assert says.startswith("accuracy 1: reward 1, a success\n      | ")
    assert says.endswith(f"      | {right}"), says
    assert shown["wrong answer"].says.startswith("accuracy 0: reward 0, no success\n      | ")


def test_a_reward_that_gives_a_gold_answer_no_success_or_fails_is_found_before_a_run(folder: Path) -> None:
    def with_reward(name: str) -> dict[str, Finding]:
        return findings(of_folder(folder, reward={"weights": {name: 1.0}, "success": name}))

    right = with_reward("tests.system.own_reward:brevity")["right answer"]
    assert right.level == "warn"
    assert "reward.success_at" in right.fix
    with pytest.raises(ConfigError, match=":1"):
        with_reward("tests.system.own_reward:broken")


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
    shown = findings(programs(folder, {**PLUS, "solution": SOLUTION}))
    assert shown["prompt"].says.startswith(f"{folder / 'problems.jsonl'}:1, 1 test, ")
    right = shown["right answer"]
    assert right.says.startswith("format 1, code_tests 1: reward 1, a success\n")
    assert "<think>…</think><answer>```python\n      | print(int(input()) + 1)" in right.says
    assert shown["wrong answer"].says.startswith("format 1, code_tests 0: reward 0.5, no success")
    assert {f.level for f in shown.values()} == {"ok"}
    untagged = {"weights": {"code_tests": 1}, "answer": "final"}
    shown = findings(programs(folder, {**PLUS, "solution": SOLUTION}, **untagged))
    assert "\n      | ```python\n      | print(int(input()) + 1)\n      | ```" in shown["right answer"].says
    shown = findings(programs(folder, PLUS))
    assert shown["right answer"].level == "warn", "no program: its tests are not tried"
    assert "reward.code_tests.columns" in shown["right answer"].fix
    assert "code_tests 0" in shown["wrong answer"].says


def test_rows_whose_own_program_does_not_pass_are_named_with_the_libraries_it_lacks(folder: Path) -> None:
    right, wrong = {**PLUS, "solution": SOLUTION}, {**PLUS, "solution": "print(7)"}
    wanting = {**PLUS, "solution": "import math, numpy.linalg\nfrom pandas import NA\n" + SOLUTION}
    findings = task(Target(programs(folder, right, PLUS, wrong, wanting)))
    *broken, total = [f for f in findings if f.what == "solutions"]
    for line, finding in zip((3, 4), broken, strict=True):
        assert finding.says.startswith(f"{folder / 'problems.jsonl'}:{line}: ")
    assert {f.level for f in (*broken, total)} == {"warn"}
    assert "numpy, pandas" in broken[1].says


def test_tests_that_cannot_be_run_stop_before_the_run_does(folder: Path) -> None:
    row = {"problem": "f", "tests": ["assert f(len) == 1"], "solution": "def f(x): return 1"}
    fine = {"problem": "g", "tests": ["assert g(1) == 1"], "solution": "def g(x): return x"}
    with pytest.raises(ConfigError, match=r"problems\.jsonl:2: "):
        findings(programs(folder, fine, row))


def test_the_sandbox_s_layers_are_named_where_programs_are_run_and_too_few_fail(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(*without: str) -> Finding:
        monkeypatch.setattr(checked_task, "Sandbox", lambda: Sandbox(without=without))
        [finding] = examine(Target(programs(folder, PLUS)), [sandbox])
        return finding

    assert sandbox in CHECKS
    assert not list(sandbox(Target(programs(folder, PLUS, weights={"format": 1.0}, success="format"))))
    assert (checked().level, "seccomp" in checked().says) == ("ok", True)
    partly = checked("namespaces", "uid")
    assert partly.level == "ok"
    assert all(f"without {layer}" in partly.says for layer in ("namespaces", "uid"))
    failed = checked("seccomp")
    assert (failed.level, "seccomp" in failed.line) == ("fail", True)


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
    second = key in ("row", "evaluation")
    path = rows(tmp_path / "rows.jsonl", "7+8=?", "7+9=? <tool>" if second else "7+9=?")
    changes = [f"model.path={beyond}"]
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
    with pytest.raises(ConfigError, match=rf"{1 + second}: .*'<tool>'"):
        list(sources.data(Target(made)))
    if key == "evaluation":
        with pytest.raises(ConfigError, match=r"jsonl:2: .*'<tool>'"):
            prompts(made, made.evaluated.data, load_held_out(made.evaluation, made.evaluated.data), Console())
    else:
        with pytest.raises(ConfigError, match="'<tool>'"):
            render_prompts(made)


def test_a_stop_token_that_the_model_has_no_row_for_is_refused(beyond: Path) -> None:
    assert list(stops(Target(load("tiny", [f"model.path={beyond}"]))))
    with pytest.raises(ConfigError, match="'<tool>'"):
        list(stops(Target(load("tiny", [f"model.path={beyond}", "rollout.stop=['<tool>']"]))))


OFF, ON = "enable_thinking: false}", "enable_thinking: true "
SWITCH = (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "settings", "named", "absent"),
    [
        (TEMPLATE, {}, "defaults", "thought"),
        (THINKING, {}, "open thought ('<think>\\n')", "turns"),
        (TEMPLATE + SWITCH, {}, OFF, "ends in"),
        (TEMPLATE + SWITCH, {"enable_thinking": False}, "empty thought", OFF),
        (TEMPLATE + SWITCH, {"enable_thinking": True}, "enable_thinking: True", OFF),
        (TEMPLATE + SWITCH.replace("not enable", "enable"), {}, ON, OFF),
    ],
)
def test_a_template_that_thinks_by_default_is_named_with_the_remedy(
    folder: Path, template: str, settings: dict[str, Any], named: str, absent: str
) -> None:
    save_model(folder / "model", template)
    data = {"path": str(folder / "problems.jsonl"), "chat_template_kwargs": settings}
    for command in ("run", "eval"):
        made = of_folder(folder, data=data, evaluation={"path": data["path"]})
        (finding,) = (f for f in templates(Target(made, command)) if f.what == "chat template")  # type: ignore[arg-type]
        assert named in finding.says
        assert absent not in finding.says


TURN = "<|im_start|>user\n1?<|im_end|>\n"
BOTH = [{"role": "system", "content": "Own."}, {"role": "user", "content": "1?"}]


@pytest.mark.parametrize(
    ("row", "settings", "named"),
    [
        ("1?", {}, {}),
        (TURN, {}, {"warn": "data.chat: false"}),
        (TURN, {"chat": False, "system": None}, {"ok": "rendered already"}),
        (TURN, {"chat": False}, {"ok": "rendered already", "warn": "data.system"}),
        ("1<|im_end|>?", {}, {"ok": "a control token"}),
        (BOTH, {}, {"warn": "data.system"}),
        (BOTH, {"system": None}, {}),
    ],
)
def test_rows_that_are_rendered_already_or_hold_control_tokens_or_a_system_message_are_named(
    folder: Path, row: Any, settings: dict[str, Any], named: dict[str, str]
) -> None:
    path = folder / "own.jsonl"
    write_lines(path, [{"problem": row, "answer": "1"}])
    findings = templates(Target(of_folder(folder, data={"path": str(path), **settings})))
    lines = {f.level: f.line for f in findings if f.what == "prompt"}
    assert lines.keys() == named.keys()
    assert all(words in lines[level] for level, words in named.items())


def test_a_message_that_the_chat_template_leaves_out_is_named_with_its_line(folder: Path) -> None:
    template = "{% for m in messages if m.role == 'user' %}{{ m.content | trim }}{% endfor %}"
    save_model(folder / "model", template)
    messages = [{"role": "developer", "content": "Add."}, {"role": "user", "content": " 1<|im_end|>?\n"}]
    lines = [{"problem": "1?", "answer": None}, {"problem": messages, "answer": "1"}]
    path = write_lines(folder / "own.jsonl", lines)
    findings = templates(Target(of_folder(folder, data={"path": str(path), "system": None})))
    [says] = [f.says for f in findings if f.level == "warn"]
    assert says.startswith(f"{path}:2: ")
    assert "developer message ('Add.')" in says


def test_what_stops_several_checks_is_reported_once_and_a_row_by_its_line(folder: Path) -> None:
    save_model(folder / "model", "{{ raise_exception('no') if messages[1:] else messages[0].content }}")
    messages = [{"role": "user", "content": "1?"}, {"role": "user", "content": "2?"}]
    lines = [{"problem": "1?", "answer": "1"}, {"problem": messages, "answer": "1"}]
    path = write_lines(folder / "own.jsonl", lines)
    made = of_folder(folder, data={"path": str(path), "system": None})
    with pytest.raises(ConfigError, match=r"own\.jsonl:2: "):
        list(sources.data(Target(made)))
    save_model(folder / "model", "{{ raise_exception('never') }}")
    stopped = examine(Target(made), (sources.data, templates, task))
    assert len([f for f in stopped if "never" in f.says]) == 1
    save_model(folder / "model", "{% if messages is string %}x{% endif %}")
    with pytest.raises(ConfigError, match=r"own\.jsonl:1: "):
        list(sources.data(Target(made)))
