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
    found = None if _LISTED.search(text) else _NUMBER.fullmatch(tight(text))
    if not found:
        return None
    sign, whole, decimals = found[1], found[2].replace(",", ""), found[3] or ""
    power = int(found[4] or found[5] or 0)
    if power > 0:
        whole, decimals = whole + decimals[:power].ljust(power, "0"), decimals[power:]
    elif power:
        whole, decimals = whole.rjust(1 - power, "0")[:power], whole.rjust(-power, "0")[power:] + decimals
    whole = whole.lstrip("0") or "0"
    decimals = decimals.rstrip("0")
    value = f"{whole}.{decimals}" if decimals else whole
    return f"-{value}" if sign == "-" and value != "0" else value


def pointed(text: str, integer: bool) -> str:
    """The text with its only decimal comma as a point: `3,5 kg` -> `3.5 kg`. Three decimals are a group of
    thousands, but behind 0. `3,0` is a list where the number sought is an integer, `3,00` none."""
    text = _POINTS.sub(lambda found: found[0].replace(".", ""), ungrouped(text))
    found = list(_COMMA.finditer(text))
    if len(found) != 1 or (integer and not int(found[0][2][:9]) and found[0][2] != "00"):
        return text
    if len(found[0][2]) == 3 and found[0][1] != "0":
        return text
    return _COMMA.sub(r"\1.\2", text)


def without_commas(text: str) -> str:
    """The text without commas as in `x = 1,234` and `12,34,567`, which may also be lists."""
    return _THOUSANDS.sub(lambda found: re.sub("[^0-9]", "", found[0]), text)


def ungrouped(text: str) -> str:
    r"""The text without spaces and apostrophes between groups of three digits: `10\,000 \pi`, `10'000 \pi` ->
    `10000 \pi`."""
    return _GROUPED.sub(lambda found: _GAP.sub("", found.group()), text)


def other_base(gold: str, answer: str) -> bool:
    """Whether the answer is a numeral in another base than the gold answer. Both without spacing.

    An answer may omit the base that the problem asks for."""
    found = _BASE.fullmatch(answer)
    return bool(found) and _base_of(answer) != _base_of(gold)


def _base_of(text: str) -> str:
    found = _BASE.fullmatch(text)
    return found.group(1) if found else "10"
