"""Equal completions of a prompt have the same gradient, so a tiny model is trained on each of them once.

A recall task has few completions a prompt: of 32 rollouts about five differ. On-policy the ratio is 1, the
loss is linear in the advantage, and the sum of the advantages gives the same gradient at a fraction of the
tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

from hora_rl.common.config import ObjectiveConfig
from hora_rl.learner.rows.sample import Sample


def merged(samples: Sequence[Sample], objective: ObjectiveConfig) -> list[Sample]:
    """The samples with equal ones merged into one of their summed advantage, where `objective` allows it.

    All samples must be of the weights that the step starts from. Sums that cancel are left out.
    """
    if not _linear(objective):
        return list(samples)
    first, sums = dict[tuple[bytes, bytes], Sample](), dict[tuple[bytes, bytes], float]()
    for sample in samples:
        key = (sample.prompt.tobytes(), sample.tokens.tobytes())
        first.setdefault(key, sample)
        sums[key] = sums.get(key, 0.0) + sample.advantage * sample.scale
    return [replace(s, advantage=sums[key] / s.scale) for key, s in first.items() if sums[key] != 0.0]


def _linear(objective: ObjectiveConfig) -> bool:
    """Whether the gradient at ratio 1 is linear in the advantage, with no term that counts tokens."""
    return objective.loss == "clip" and objective.updates_per_batch == 1 and objective.kl == 0.0
