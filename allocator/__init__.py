"""The paper's allocation as a library: how many rollouts each prompt gets. Needs only numpy.

    from hora_rl.allocator import allocate
    extra = allocate(successes=[0, 3, 8], trials=8, budget=72)

`Session` allocates in rounds. `plan` forecasts each rule on recorded counts.
"""

from hora_rl.allocator.planning.forecast import plan
from hora_rl.allocator.session import Session
from hora_rl.allocator.solver import allocate

__all__ = ["Session", "allocate", "plan"]
