"""The verifier's own failures."""


class VerifierUnavailable(RuntimeError):
    """The verifier itself failed; no answer was judged. Ask again."""
