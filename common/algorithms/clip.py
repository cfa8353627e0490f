"""The clipped ratio of PPO (1707.06347): the paper's equation 1, GRPO's and Dr.GRPO's loss."""

from hora_rl.common.algorithms.base import Algorithm, Gain, TokenTerms


def token_loss(tokens: TokenTerms) -> Gain:
    """min(ρA, clip(ρ, 1 - ε_low, 1 + ε_high) A)."""
    clipped = tokens.ratio.clamp(1.0 - tokens.clip_low, 1.0 + tokens.clip_high)
    plain = tokens.ratio * tokens.advantage
    gain = plain.minimum(clipped * tokens.advantage)
    return gain, gain != plain


ALGORITHM = Algorithm(token_loss=token_loss)
