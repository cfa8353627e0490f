"""The learner under torchrun says in one line what it cannot do there, before it trains."""

import subprocess
import sys

import pytest

from learner import main as program

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
        (("weights.transport=gloo",), "--no-ray publishes over weights.transport file alone, not gloo"),
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


@pytest.mark.system
def test_torchrun_shows_the_line_and_no_trace() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "learner.main", *words(*EVALUATED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0
    assert LINE in done.stderr
    assert "learner/main.py" not in done.stderr
