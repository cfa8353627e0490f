"""Failures of the verifier."""


class VerifierUnavailable(RuntimeError):
    """The verifier failed and judged no answer. Retry."""
