"""GSPO (2507.18071): one ratio for a completion, its geometric mean, clipped within 3e-4 and 4e-4; each
completion by its own length."""

from hora_rl.common.algorithms import clip
from hora_rl.common.algorithms.base import Algorithm

ALGORITHM = Algorithm(
    token_loss=clip.token_loss,
    per_completion=True,
    defaults={"normalisation": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
)
