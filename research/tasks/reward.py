"""The answers of recall tasks: how one is written, read and rewarded. Imported by verifiers: no torch."""

from __future__ import annotations


def completion(answer: str) -> str:
    """A complete completion that gives `answer`."""
    return f"<think></think><answer>{answer}</answer>"


def answer_of(text: str) -> str | None:
    """The answer of a completion that `completion` could have made, else None."""
    start, end = completion("\0").split("\0")
    return text[len(start) : -len(end)] if text.startswith(start) and text.endswith(end) else None


def one_of(prompt: str, text: str, gold: str) -> float:
    """Reward: 1.0 where the answer is one of the right ones, which `gold` joins by |."""
    return float(answer_of(text) in gold.split("|"))
