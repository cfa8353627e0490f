"""DAPO (2503.14476): higher upper bound, all tokens of the batch alike, soft penalty of long answers. Its
dynamic sampling is not here: groups without signal stay in the batch and compute nothing."""

from hora_rl.common.algorithms import clip
from hora_rl.common.algorithms.base import Algorithm

ALGORITHM = Algorithm(
    token_loss=clip.token_loss,
    defaults={"normalisation": "token", "clip_high": 0.28, "overlong": "soft"},
)
