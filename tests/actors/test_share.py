"""Clients of the endpoint get a small share of the engine while a run trains, and all of it otherwise."""

import pytest

from hora_rl.actors.generator.share import QUIET_S, SAVED_S, SHARE, Share


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def busy(share: Share, clock: Clock, hours: float, rollouts: int, prompt_s: float, step_s: float) -> float:
    """Clients ask without pause, up to 16 at a time, for as long as `rollouts` are sampled; the part of the
    time that the engine was theirs: the whole engine for a prompt, their part of it afterwards."""
    share.add(rollouts=rollouts)
    running: list[float] = []
    spent, end = 0.0, clock.now + 3600 * hours
    while clock.now < end:
        for _ in [until for until in running if until <= clock.now]:
            share.add(clients=-1)
        running = [until for until in running if until > clock.now]
        while len(running) < 16 and share.is_open:
            share.add(clients=1)
            share.charge(prompt_s, share.begin())
            spent += prompt_s
            running.append(clock.now + 4.0)
        spent += step_s * len(running) / max(1, len(running) + rollouts)
        clock.now += step_s
    for _ in running:
        share.add(clients=-1)
    share.add(rollouts=-rollouts)
    return spent / (3600 * hours)


@pytest.mark.parametrize("rollouts", [1, 16, 256, 2000])
@pytest.mark.parametrize("prompt_s", [0.01, 0.5, 5.0])
def test_a_run_keeps_its_part_of_the_engine(rollouts: int, prompt_s: float) -> None:
    clock = Clock()
    assert busy(Share(clock=clock), clock, 1, rollouts, prompt_s, 0.05) < SHARE + 0.03


def test_clients_are_never_shut_out() -> None:
    clock = Clock()
    share = Share(clock=clock)
    assert busy(share, clock, 1, 16, 0.5, 0.05) > SHARE * 0.9
    clock.now += 2 * SAVED_S / SHARE
    share.add(rollouts=1)
    assert share.is_open


def test_few_requests_among_many_rollouts_do_not_wait() -> None:
    clock = Clock()
    share = Share(clock=clock)
    share.add(rollouts=256)
    for _ in range(100):
        assert share.is_open
        share.add(clients=1)
        share.charge(0.1)
        clock.now += 10.0
        share.add(clients=-1)


def test_the_engine_is_free_between_rollouts_unless_the_learner_needs_its_cores() -> None:
    for one_cpu in (False, True):
        clock = Clock()
        share = Share(one_cpu, clock)
        assert share.is_open
        share.charge(100.0)
        assert share.is_open, "no rollout has come yet"
        share.add(rollouts=5)
        share.charge(100.0)
        assert not share.is_open
        clock.now += 1.0
        share.add(rollouts=-5)
        assert share.is_open != one_cpu
        clock.now += QUIET_S + 1.0
        assert share.is_open


def test_many_requests_do_not_begin_on_the_same_credit() -> None:
    clock = Clock()
    share = Share(clock=clock)
    share.add(rollouts=256)
    share.charge(0.5)
    begun: list[float] = []
    while share.is_open:
        begun.append(share.begin())
    assert len(begun) == 3, "of two seconds saved, one request took a half, and each is expected to"
    for one in begun:
        share.charge(None, one)
    assert share.is_open, "what was never computed is given back"
