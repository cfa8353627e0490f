"""What `hora check` finds out about an objective by trying it: functions and rules that it names."""

import pytest

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.deploy.checks.configuration import names
from hora_rl.deploy.checks.findings import Target


def nan_without_a_hit(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return successes / successes.mean()


def hits_of_phase_b(rewards, successes, phases):  # type: ignore[no-untyped-def]
    return successes * (phases == "B")


def checked(*overrides: str) -> None:
    list(names(Target(load("tiny", overrides))))


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ((f"learner.objective.advantage={__name__}:nan_without_a_hit",), "must be finite"),
        (("learner.objective.advantage=nowhere:f",), r"learner.objective.advantage: cannot load 'nowhere:f'"),
        (
            ("allocation.rule=uniform", "learner.objective.group_weight={as_if: hit_utilty}"),
            r"learner.objective.group_weight.as_if \(hit_utilty\)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_would_end_a_run_later_is_refused_by_the_check(overrides: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        checked(*overrides)
    assert "\n" not in str(caught.value)


def test_a_function_of_ones_own_that_serves_passes() -> None:
    checked(f"learner.objective.advantage={__name__}:hits_of_phase_b")
