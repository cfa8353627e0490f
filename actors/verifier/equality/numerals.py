"""Plain numbers and numerals in other bases, compared without mathematics."""

import re

from hora_rl.actors.verifier.equality.texts import SPACE, bare, tight

_NUMBER = re.compile(
    r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(?:\.(\d*))?"
    r"(?:(?:\\times|\\cdot|\*)10\^(?:([+-]?\d{1,3})|\{([+-]?\d{1,3})\}))?"
)
_LISTED = re.compile(r",(?:\s|~|\\[,;: ])")  # not `\!`: in `10,\!080` it is negative space
_GAP = re.compile(rf"(?:{SPACE}|\{{(?:,|\\[,;:])\}})+|['’ʼ_]")
_GROUPED = re.compile(rf"(?<![\w.,'’])(?<!,\}})\d{{1,3}}(?:(?:{_GAP.pattern})\d{{3}})+(?![\d'’_{{])")
_THOUSANDS = re.compile(
    r"(?<![\d.,{}(\[])(?:[1-9]\d{0,2}(?:(?:,|\{,\})\d{3})+|\d{1,2}(?:(?:,|\{,\})\d\d)+(?:,|\{,\})\d{3})(?![\d,])"
)
_MILLIONS = re.compile(r"[+-]?\d{1,3}(?:\.\d{3}){2,}")
_POINTS = re.compile(r"\d{1,3}(?:\.\d{3}){2,}|\d{1,3}(?:\.\d{3})+(?=,\d)")
_COMMA = re.compile(r"(?<![\d.,(\[{])(\d+)(?:,|\{,\})(\d+)(?![\d.,])")
_BASE = re.compile(r"[0-9A-Fa-f]+_\{?(\d+)\}?")


def canonical_number(text: str) -> str | None:
    r"""`1,234.50`, `1 234.5` and `1{,}234.5` -> `1234.5`, `-0` -> `0`, `1e-05` and `1\times 10^{-5}` ->
    `0.00001`; None unless the text is a plain integer or decimal.

    None also for `3, 103`, a list, and for `2e - 3` and `2e`, where `e` is Euler's number."""
    text = ungrouped(bare(text))
    text = text.replace(".", "") if _MILLIONS.fullmatch(text) else text
    match = None if _LISTED.search(text) else _NUMBER.fullmatch(tight(text))
    if not match:
        return None
    sign, integer, decimals = match[1], match[2].replace(",", ""), match[3] or ""
    power = int(match[4] or match[5] or 0)
    if power > 0:
        integer, decimals = integer + decimals[:power].ljust(power, "0"), decimals[power:]
    elif power:
        integer, decimals = (
            integer.rjust(1 - power, "0")[:power],
            integer.rjust(-power, "0")[power:] + decimals,
        )
    integer = integer.lstrip("0") or "0"
    decimals = decimals.rstrip("0")
    value = f"{integer}.{decimals}" if decimals else integer
    return f"-{value}" if sign == "-" and value != "0" else value


def pointed(text: str, integer: bool) -> str:
    """The text with its only decimal comma as a point: `3,5 kg` -> `3.5 kg`. Three decimals are a group of
    thousands, but behind 0. `3,0` is a list where the number sought is an integer, `3,00` none."""
    text = _POINTS.sub(lambda match: match[0].replace(".", ""), ungrouped(text))
    matches = list(_COMMA.finditer(text))
    if len(matches) != 1 or (integer and not int(matches[0][2][:9]) and matches[0][2] != "00"):
        return text
    if len(matches[0][2]) == 3 and matches[0][1] != "0":
        return text
    return _COMMA.sub(r"\1.\2", text)


def without_commas(text: str) -> str:
    """The text without commas as in `x = 1,234` and `12,34,567`, which may also be lists."""
    return _THOUSANDS.sub(lambda match: re.sub("[^0-9]", "", match[0]), text)


def ungrouped(text: str) -> str:
    r"""The text without spaces and apostrophes between groups of three digits: `10\,000 \pi`, `10'000 \pi` ->
    `10000 \pi`."""
    return _GROUPED.sub(lambda match: _GAP.sub("", match.group()), text)


def other_base(gold: str, answer: str) -> bool:
    """Whether the answer is a numeral in another base than the gold answer. Both without spacing.

    An answer may omit the base that the problem asks for."""
    match = _BASE.fullmatch(answer)
    return bool(match) and _base_of(answer) != _base_of(gold)


def _base_of(text: str) -> str:
    match = _BASE.fullmatch(text)
    return match.group(1) if match else "10"
