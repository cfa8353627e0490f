"""Estimates an answer's computing cost from its text, so that an expensive answer is never parsed.

math-verify computes exact numbers, so `9^{9^{9^9}}` or `(10^{10})!` does not end, and its parser takes
seconds for forty open brackets. The estimate is an upper bound on the number of digits, in linear time."""

import math
import re

from hora_rl.actors.verifier.equality.notation import named, symbols
from hora_rl.actors.verifier.equality.typeface import untypeset

MAX_NESTING = 12
"""Maximum nesting of brackets. The deepest gold answer in four benchmarks has 2."""

MAX_DIGITS = 50_000
"""Maximum number of digits in an answer's computed numbers. `2^{2025}` has 610."""

MAX_TOKENS = 300
"""Maximum number of numbers, letters, commands and signs. Each takes the parser milliseconds."""

_OPENING, _CLOSING = "([{", ")]}"
_TOKEN = re.compile(r"\d+(?:\.\d+)?|\\[A-Za-z]+|\\.|\*\*|[A-Za-z]|\S")
_CHOICES = ("\\binom", "\\choose", "\\dbinom", "\\tbinom")


def bounded(text: str, max_chars: int) -> bool:
    """Whether a text is short and shallow enough to parse, and its numbers small enough to compute."""
    if not text or len(text) > max_chars or not _shallow(text):
        return False
    tokens = _TOKEN.findall(named(symbols(untypeset(text))))
    try:
        return len(tokens) <= MAX_TOKENS and _Reader(tokens).all() <= MAX_DIGITS
    except _TooLarge:
        return False


def _shallow(text: str) -> bool:
    depth = 0
    for char in text:
        if char in _OPENING:
            depth += 1
            if depth > MAX_NESTING:
                return False
        elif char in _CLOSING:
            depth -= 1
    return True


class _TooLarge(Exception):
    pass


class _Reader:
    """Reads a text once. A value is at most the product of its numbers, 1 as 2 (a + b ≤ a·b for a, b ≥ 2)."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._powers = 0

    def all(self) -> float:
        """log10 of the bound for the text. Raises _TooLarge."""
        digits = self._product()
        while self._at < len(self._tokens):  # after an unmatched closing bracket
            digits += self._product()
        return digits

    def _product(self) -> float:
        digits = 0.0
        while not self._closed():
            digits += self._power()
        self._at += 1
        return _checked(digits)

    def _power(self) -> float:
        digits = self._atom()
        while self._next() in ("^", "**", "!"):
            self._at += 1
            factorial = self._tokens[self._at - 1] == "!"
            digits = _factorial(digits) if factorial else self._raised(digits)
        return digits

    def _raised(self, digits: float) -> float:
        """The base's digits times the value of the following exponent."""
        self._powers += 1
        if self._powers > MAX_NESTING:
            raise _TooLarge
        while self._next() == "\\sqrt":  # in `2^\sqrt{10^{18}}` the exponent is the root, not the command
            self._at += 1
        exponent = 0.0 if self._closed() else self._power()
        self._powers -= 1
        return _checked(max(digits, self._letter) * 10 ** min(exponent, 300.0))

    def _atom(self) -> float:
        token = self._tokens[self._at]
        self._at += 1
        if token in _OPENING:
            return self._product()
        if token[0].isdecimal():
            return math.log10(max(float(token[:300]), 2.0)) + max(0, len(token) - 300)
        if token in _CHOICES:
            return _factorial(max(self._argument(), self._argument()))
        return self._letter if token.isalpha() else 0.0

    def _argument(self) -> float:
        return 0.0 if self._closed() else self._power()

    @property
    def _letter(self) -> float:
        """log10 for a letter: `(x+1)^{99999}` has as many terms as its exponent. 0 in an exponent."""
        return 0.0 if self._powers else 1.0

    def _next(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _closed(self) -> bool:
        return (self._next() or ")") in _CLOSING


def _checked(digits: float) -> float:
    if digits > MAX_DIGITS:
        raise _TooLarge
    return digits


def _factorial(digits: float) -> float:
    """log10 of n! for an n with this many digits."""
    if digits > 5:
        raise _TooLarge
    return _checked(10**digits * max(digits, 1.0))
