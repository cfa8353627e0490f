"""Errors of code that may raise anything reach a person as one of ours."""

import pytest

from hora_rl.common.equality.expressions import parse
from hora_rl.common.errors import RunError, Unavailable, any_error_as
from hora_rl.common.user_code import failures_named


def test_an_error_of_any_type_becomes_the_named_one() -> None:
    with (
        pytest.raises(RunError, match="no start: Exception: too slow") as caught,
        any_error_as(lambda reason: RunError(f"no start: {reason}")),
    ):
        raise Exception("too slow")
    assert type(caught.value.__cause__) is Exception


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_process_is_no_error(end: type[BaseException]) -> None:
    with pytest.raises(end), any_error_as(RunError):
        raise end


def test_a_reward_whose_service_is_away_is_not_a_failed_one() -> None:
    with pytest.raises(Unavailable), failures_named("reward 'mine:score'"):
        raise Unavailable("service")
    said = r"^reward 'mine:score' raised KeyError: 'x' \(row 3\)$"
    with pytest.raises(ValueError, match=said), failures_named("reward 'mine:score'", " (row 3)"):
        raise KeyError("x")


def test_bad_syntax_is_no_expression_and_too_little_memory_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parse(r"\frac{1}{") is None

    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("hora_rl.common.equality.expressions.latex2sympy", full)
    with pytest.raises(MemoryError):
        parse("1")
