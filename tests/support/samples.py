"""Training sequences of a test's choosing, and how their prompts are shared."""

import numpy as np

from hora_rl.learner.rows.batch import MicroBatch, make_micro_batch
from hora_rl.learner.rows.packing import Sample, Sharing
from tests.support.groups import Numbers

Values = np.ndarray | float
ALWAYS = Sharing(even=1e9)
"""Prompts are shared wherever a prompt has two completions, however little that saves."""


def sample(
    prompt: Numbers, tokens: Numbers, logprobs: Values = 0.0, advantage: float = 1.0, scale: float = 1.0
) -> Sample:
    """`tokens` after `prompt`, all of the learner's version. One number as `logprobs` is of every token."""
    ids = np.asarray(tokens, np.int32)
    each = np.array(np.broadcast_to(np.asarray(logprobs, np.float32), ids.shape))
    return Sample(np.asarray(prompt, np.int32), ids, each, advantage, scale, np.ones(len(ids), dtype=bool))


def sized(prompt: int, tokens: int) -> Sample:
    """A sequence of which only the lengths matter."""
    return sample(np.ones(prompt), np.ones(tokens))


def random_micro_batch(length: int, seed: int, vocabulary: int) -> MicroBatch:
    """One completion of `length` random tokens; its advantage is 1 for an even `seed`, else -1."""
    ids = np.random.default_rng(seed).integers(0, vocabulary, length + 4)
    return make_micro_batch([[sample(ids[:4], ids[4:], -7.0, (-1.0) ** seed, 0.01)]])
