"""Who is admitted to a replica: rollouts, evaluations, and the endpoint's clients with their small share."""

from contextlib import ExitStack

import numpy as np
import pytest

from hora_rl.actors.generator.places import Admission
from hora_rl.actors.generator.share import QUIET_S, SAVED_S, SHARE, Share
from hora_rl.common.errors import NoRoom
from hora_rl.common.types import BELOW_TRAINING, Pinned, Prompt, SamplingRequest

PROMPT = Prompt(0, "1+1", "2", np.zeros(3, np.int32))


def request(n: int, priority: int = BELOW_TRAINING, pinned: Pinned | None = None) -> SamplingRequest:
    return SamplingRequest(PROMPT, n, 0, priority, pinned=pinned)


def test_evaluations_hold_so_many_places_of_a_replica_and_training_the_others() -> None:
    places = Admission("generator/a", requests=8, aside=8)
    with ExitStack() as held:
        for each in (request(4), request(4), *(request(16, priority=i) for i in range(5))):
            held.enter_context(places.held([each]))
        with pytest.raises(NoRoom, match="8 completions of an evaluation"), places.held([request(1)]):
            pass
        held.enter_context(places.held([request(16, priority=5)]))
        with pytest.raises(NoRoom, match="has 8 requests"), places.held([request(16, priority=6)]):
            pass
    assert places.sampling == places.sampling_aside == 0
    with places.held([request(16)]):  # alone it may be larger
        pass
    pinned = request(64, pinned=Pinned("generator/a", 40))
    with places.held([pinned]), places.held([pinned]):
        assert places.sampling == 2, "no limit of completions besides the engine's own"


def test_the_endpoint_has_places_of_its_own_on_a_replica() -> None:
    places = Admission("g", requests=1, aside=1, served=4)
    with places.held_to_serve(3):
        with pytest.raises(NoRoom, match="samples 3 completions of the endpoint"), places.held_to_serve(2):
            pass
        assert places.sampling == 0, "none of training's is taken"
    with places.held_to_serve(4):
        pass
    with places.held([request(12, priority=0)]):
        with places.held_to_serve(4):
            assert (places.share.rollouts, places.share.clients) == (12, 4)
        places.share.charge(60.0)
        with pytest.raises(NoRoom, match="clients have had their share"), places.held_to_serve(1):
            pass
    with places.held_to_serve(4):  # nothing is sampled for training
        pass


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
