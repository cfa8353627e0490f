"""Finds text between two marks in a turn of the policy."""

from __future__ import annotations


def between(text: str, begin: str, end: str) -> str | None:
    """Text between the first `begin` and the next `end`; None if a mark is missing. Runs in linear time. A
    regular expression may need quadratic time."""
    found, closed, _ = text.partition(begin)[2].partition(end)
    return found if closed else None
