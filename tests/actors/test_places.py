"""Who is admitted to a replica: rollouts, completions of evaluations, and clients of the endpoint."""

from contextlib import ExitStack

import numpy as np
import pytest

from hora_rl.actors.generator.places import Admission
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
