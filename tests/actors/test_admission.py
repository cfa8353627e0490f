"""Who is admitted to a replica: rollouts and evaluations."""

from contextlib import ExitStack

import numpy as np
import pytest

from hora_rl.actors.generator.deployment import Admission
from hora_rl.common.errors import NoRoom
from hora_rl.common.types import BELOW_TRAINING, Prompt, SamplingRequest

PROMPT = Prompt(0, "1+1", "2", np.zeros(3, np.int32))


def request(n: int, priority: int = BELOW_TRAINING) -> SamplingRequest:
    return SamplingRequest(PROMPT, n, 0, priority)


def test_evaluations_hold_so_many_places_of_a_replica_and_training_the_others() -> None:
    admission = Admission("generator/a", requests=8, low_priority=8)
    with ExitStack() as held:
        for each in (request(4), request(4), *(request(16, priority=i) for i in range(5))):
            held.enter_context(admission.admitted([each]))
        with pytest.raises(NoRoom, match="8 completions"), admission.admitted([request(1)]):
            pass
        held.enter_context(admission.admitted([request(16, priority=5)]))
        with pytest.raises(NoRoom, match="8 requests"), admission.admitted([request(16, priority=6)]):
            pass
    assert admission.sampling == admission.sampling_low == 0
    with admission.admitted([request(16)]):  # alone it may be larger
        pass
