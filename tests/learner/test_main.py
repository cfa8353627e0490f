"""The learner under torchrun says in one line what it cannot do there, before it trains."""

import sys

import pytest

from hora_rl.learner import main as program

LINE = "evaluation.every (5) is kept by `hora run` and `hora train`"
EVALUATED = ("evaluation.every=5", "learner.keep_best=pass@4")


def words(*settings: str) -> list[str]:
    given = [word for setting in settings for word in ("--set", setting)]
    return ["--config", "tiny", "--redis", "unix:///nowhere", "--no-ray", *given]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (EVALUATED[:1], LINE),
        (EVALUATED, LINE),
        (("weights.transport=gloo",), "--no-ray needs weights.transport: file, not gloo"),
        (("learner.step=5",), "learner.step"),
    ],
)
def test_what_would_be_left_out_is_refused_in_one_line(
    settings: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["main", *words(*settings)])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert line in str(ended.value)
    assert str(ended.value).startswith("hora learner, rank 0: ")
    assert "\n" not in str(ended.value)
