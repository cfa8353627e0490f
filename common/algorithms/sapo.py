"""SAPO (2511.20347): a sigmoid around ρ = 1 in place of the clip; each completion by its own length."""

from hora_rl.common.algorithms.base import Algorithm, Gain, TokenTerms

TAU, TAU_NEGATIVE = 1.0, 1.05


def token_loss(tokens: TokenTerms) -> Gain:
    """(4/τ) σ(τ(ρ - 1)) A, with a larger τ for negative A: at ρ = 1 its gradient is that of ρA, and it fades
    beyond. Clips no token."""
    positive = tokens.advantage > 0
    tau = tokens.ratio.new_full(positive.shape, TAU_NEGATIVE).masked_fill(positive, TAU)
    gate = (tau * (tokens.ratio - 1.0)).sigmoid() * 4.0 / tau
    return gate * tokens.advantage, positive.new_zeros(positive.shape)


ALGORITHM = Algorithm(token_loss=token_loss, defaults={"normalisation": "sequence"})
