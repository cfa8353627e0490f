"""Checks before a start: rules, rows of data, benchmarks, locks, and the commands that use the list."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from hora_rl.common.errors import ConfigError, HoraError
from hora_rl.common.load import ROOT, load
from hora_rl.deploy.checks import configuration, sources
from hora_rl.deploy.checks.findings import Finding, Target
from hora_rl.deploy.checks.run_checks import CHECKS, check_all, examine, target_of
from tests.support.checks import Make, one


def rows(path: Path, *problems: str) -> str:
    path.write_text("".join(json.dumps({"problem": p, "answer": "1"}) + "\n" for p in problems))
    return str(path)


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
    data, rollout = {"path": str(ROOT / "evaluation/data/aime25.jsonl")}, {"max_prompt_tokens": 400}
    settings = config(
        data=data, rollout={**rollout, "prompts_per_batch": 1, "shards": 1, "max_response_tokens": 99}
    )
    warned = [f.says for f in sources.data(Target(settings)) if f.level == "warn"]
    leaks = [w for w in warned if w.startswith("training row")]
    assert leaks[0].startswith("training row 0 equals row 1 of ")
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
    assert len(findings) >= len(CHECKS) - 4, "some have nothing to say of a configuration"
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
        lambda: run_local(config, resume=False, fresh=False),
        lambda: train_on_cluster(config),
        lambda: evaluate_local(config, ["amc23"], 1, (1,), tmp_path),
    ):
        with pytest.raises(ConfigError, match="added: a new reason; a new remedy"):
            start()
    assert checks.check_all("tiny", ()) is False
    assert checks.check_all("deploy/hora.yaml", ()) is False
    assert seen == ["run", "run", "train", "eval", "run", "train"]


def test_rounds_that_stop_at_nothing_are_advised_against(config: Make) -> None:
    def advice(**allocation: object) -> Finding | None:
        found = one(configuration.names, Target(config(allocation=dict(allocation))))
        return found.get("allocation.rounds")

    said = advice(rounds=4)
    assert said is not None
    assert said.level == "warn"
    assert "allocation.stop: hit" in said.fix
    assert advice(rounds=4, stop="hit") is None
    assert advice() is None


def test_a_held_out_problem_beyond_the_limit_is_refused_before_anything_starts(
    config: Make, tmp_path: Path
) -> None:
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


def nan_without_a_hit(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return successes / successes.mean()


def hits_of_phase_b(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return successes * (phases == "B")


RULE, ADVANTAGE, WEIGHT = "allocation.rule", "learner.objective.advantage", "learner.objective.group_weight"


def checked(key: str, value: str) -> None:
    list(configuration.names(Target(load("tiny", ["allocation.rule=uniform", f"{key}={value}"]))))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (RULE, f"{__name__}:rising", "its marginal gain rises from level 0 to 1"),
        (RULE, f"{__name__}:scalar", "must return shape"),
        (RULE, f"{__name__}:broken", "raised KeyError"),
        (RULE, f"{__name__}:NO_FUNCTION", "is no function"),
        (ADVANTAGE, f"{__name__}:nan_without_a_hit", "must be finite"),
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
    checked(ADVANTAGE, f"{__name__}:hits_of_phase_b")
