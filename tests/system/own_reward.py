"""A reward of a user's own. Such a one is always computed in a verifier's worker process."""


def brevity(problem: str, completion: str, answer: str) -> float:
    """More for fewer characters."""
    del problem, answer
    return 1.0 / (1 + len(completion))
