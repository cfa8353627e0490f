r"""Answers in words: `\text{Evelyn}`. They are compared as words, not as products of letters."""

from __future__ import annotations

import re

from common.equality.texts import TEXT, bare

_WORDS = re.compile(TEXT + r"\{([^{}\\]*[A-Za-z][^{}\\]*)\}")
_EMPTY = re.compile(
    r"(?:there (?:is|are) )?no (?:real )?solutions?|(?:the )?empty set|no such \w+(?: exists?)?"
)
_ALL = re.compile(r"(?:all|any) reals?(?: numbers?)?")


def canonical_words(text: str) -> str | None:
    r"""`\text{Evelyn}` -> `evelyn`; None where the text is not a single text command."""
    found = _WORDS.fullmatch(bare(text))
    return plain_words(found.group(1)) if found else None


def plain_words(text: str) -> str:
    """Lower case, single spaces, no brackets around."""
    return " ".join(text.lower().strip("() .").split())


def spelt_set(text: str) -> str | None:
    r"""The set that words name as LaTeX: `no solution` -> `\emptyset`, `all real numbers` -> `\mathbb{R}`."""
    words = canonical_words(text) or plain_words(bare(text))
    if _EMPTY.fullmatch(words):
        return r"\emptyset"
    return r"\mathbb{R}" if _ALL.fullmatch(words) else None
