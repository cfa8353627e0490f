"""CISPO (MiniMax-M1, 2506.13585; bound of ScaleRL, 2510.13786): a bounded ratio without gradient weighs
A log π, so no token is left out; all tokens of the batch alike."""

from hora_rl.common.algorithms.base import Algorithm, Gain, TokenTerms


def token_loss(tokens: TokenTerms) -> Gain:
    """min(ρ, 1 + ε_high) A log π, ρ detached."""
    bound = 1.0 + tokens.clip_high
    weight = tokens.ratio.detach().clamp(max=bound)
    return weight * tokens.advantage * tokens.logprobs, tokens.ratio > bound


ALGORITHM = Algorithm(token_loss=token_loss, defaults={"normalisation": "token", "clip_high": 4.0})
