"""What a policy puts between two marks of its turn."""

from __future__ import annotations


def between(text: str, begin: str, end: str) -> str | None:
    """What is between the first `begin` and the next `end`; None where one is missing. It takes linear time,
    whatever a policy writes; a regular expression may take quadratic time."""
    found, closed, _ = text.partition(begin)[2].partition(end)
    return found if closed else None
