"""Which side of a run idles, and which split would balance it: from figures of steps alone."""

import itertools

import pytest

from hora_rl.common.config import Config
from hora_rl.deploy.monitor.run_state import WINDOW, Balance, Metrics, balance, split_of
from tests.support.synthetic_run import config_of

H100 = "NVIDIA H100 80GB HBM3"


def cards(replicas: int, workers: int, tensor_parallel: int = 1) -> Config:
    generator = {"replicas": replicas, "tensor_parallel": tensor_parallel}
    return config_of("split", generator=generator, learner={"workers": workers})


def steps(*shares: tuple[float, float | None], seconds: float = 100.0, first: int = 1) -> list[Metrics]:
    """Records of steps in which the learner waited and the generators idled for these shares."""
    return [
        {"step": first + i, "time/step": seconds, "time/wait": wait * seconds, "generators/idle": idle}
        for i, (wait, idle) in enumerate(shares)
    ]


def balance_of(config: Config, wait: float, idle: float | None, device: str = H100) -> Balance:
    learner, split = config.learner, split_of(config.generator, config.learner, device)
    result = balance(steps((wait, idle), (wait, idle)), learner.steps, config.rollout.max_staleness, split)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("now", "wait", "idle", "side", "values", "factor"),
    [
        ((2, 6), 0.5, 0.0, "learner", (3, 5), 0.667),
        ((1, 7), 0.7, 0.0, "learner", (3, 5), 0.42),
        ((48, 16), 0.0, 0.75, "generators", (27, 37), 0.444),
        ((4, 4), 0.05, 0.7, "generators", (2, 6), 0.667),
        ((1, 1), 0.6, 0.0, "learner", None, 1.0),  # nothing can be moved
        ((2, 2), 0.3, 0.0, "learner", None, 1.0),  # 3 + 1 would be slower
        ((4, 4), 0.4, 0.5, "generators", None, 1.0),  # both wait for something else
        ((1, 6, 2), 0.5, 0.0, "learner", (2, 4), 0.75),  # a replica takes its two cards at once
    ],
)
def test_cards_move_to_the_side_that_is_slow(
    now: tuple[int, ...], wait: float, idle: float, side: str, values: tuple[int, int] | None, factor: float
) -> None:
    result = balance_of(cards(*now), wait, idle)
    assert (result.side, result.split and result.split.values) == (side, values)
    assert result.factor == pytest.approx(factor, abs=0.06)
    assert bool(result.remedy) == (values is not None)
    if values:
        assert f"generator.replicas {values[0]} and learner.workers {values[1]} would" in result.remedy


def test_on_processors_threads_move() -> None:
    threads = {"generator": {"threads": 2}, "learner": {"threads": 6}}
    result = balance_of(config_of("cpu", **threads), 0.5, 0.0, "cpu")
    assert "generator.threads 3 and learner.threads 5 would balance them, with steps of" in result.remedy
    assert not balance_of(config_of("cpu"), 0.5, 0.0, "cpu").remedy, "of two threads each side has one"


def test_on_a_shared_card_or_an_unknown_device_it_is_said_who_waits_and_no_more() -> None:
    shared = config_of("result", generator={"gpus": 0.5}, learner={"gpus": 0.5})
    for config, device in ((shared, H100), (cards(2, 6), "")):
        result = balance_of(config, 0.5, 0.0, device)
        assert (result.says, result.remedy) == ("learner waits 50% of its time (50.0 of 100.0 s a step)", "")
    assert balance_of(cards(2, 6), 0.5, None).remedy == "", "how busy the generators are is not known"


def test_nothing_is_said_before_two_steps_of_the_end_of_a_run_and_of_sides_that_take_turns() -> None:
    config, idle = cards(2, 6), (0.0, 0.9)
    split, end = split_of(config.generator, config.learner, H100), config.learner.steps
    assert balance(steps(idle, idle, first=0), end, 1, split) is None
    assert balance(steps(idle, idle), end, 1, split) is not None
    assert balance(steps(idle, idle, seconds=4.0), end, 1, split) is None, "in 8 s there were 8 looks"
    assert balance(steps(*[(0.0, 0.0)] * 8, idle, idle, first=end - 10), end, 1, split) is None
    assert balance(steps((0.5, 0.5), (0.5, 0.5)), end, 0, split) is None, "they wait by design"


def test_what_is_said_does_not_flap() -> None:
    """Shares around the limit, and single steps that wait for an operator or an evaluation."""
    end = cards(2, 6).learner.steps

    def shown(records: list[Metrics]) -> list[bool]:
        return [balance(records[:n], end, 1, None) is not None for n in range(2, len(records) + 1)]

    around = shown(steps(*[(0.27 if i % 2 else 0.22, 0.0) for i in range(2 * WINDOW)]))
    assert sum(a != b for a, b in itertools.pairwise(around)) <= 1
    assert not any(shown(steps(*[(0.95 if i == 7 else 0.05, 0.0) for i in range(WINDOW)])))
    healed = shown(steps(*[(0.5, 0.0)] * 4, *[(0.0, 0.0)] * WINDOW))
    assert (healed[0], healed[-1]) == (True, False)
    assert sum(a != b for a, b in itertools.pairwise(healed)) == 1
