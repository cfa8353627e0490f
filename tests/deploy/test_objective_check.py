"""What `hora check` finds out about an objective and a rule by trying them."""

import pytest

from hora_rl.common.errors import ConfigError
from hora_rl.common.load import load
from hora_rl.deploy.checks.configuration import names
from hora_rl.deploy.checks.findings import Target

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
    list(names(Target(load("tiny", ["allocation.rule=uniform", f"{key}={value}"]))))


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
