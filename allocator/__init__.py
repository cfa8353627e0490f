"""The paper's contribution on its own: which prompts get how many of the remaining rollouts. Needs numpy
alone.

    from hora_rl.allocator import allocate
    extra = allocate(successes=[0, 3, 8], trials=8, budget=72)

`Session` does the same in rounds, `plan` says what each rule would find on recorded counts.
"""

from hora_rl.allocator.planning.forecast import plan
from hora_rl.allocator.problem import allocate
from hora_rl.allocator.session import Session

__all__ = ["Session", "allocate", "plan"]
