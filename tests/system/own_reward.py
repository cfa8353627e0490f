"""A reward and a way to find answers of a user's own. Such functions always run in a verifier's worker
process."""


def brevity(problem: str, completion: str, answer: str) -> float:
    """More for fewer characters."""
    del problem, answer
    return 1.0 / (1 + len(completion))


def last_word(completion: str) -> str:
    """The answer of a completion that ends with it."""
    return completion.split()[-1]


def broken(problem: str, completion: str, answer: str) -> float:
    """A reward that fails."""
    raise RuntimeError("no reward today")
