"""Unicode mathematics and plain names as LaTeX: `5√2`, `x⁴`, `½`, `sqrt(2)`, `2*pi`, `sin(x)`, `3 x 10^8`;
repeating decimals as fractions.

All functions take linear time and are safe on hostile text."""

import re
from pathlib import Path
from typing import Any
from unicodedata import category, decimal, normalize

import yaml

TEXT = r"\\(?:text(?:bf|it|rm|normal|up)?|mathrm|mathbf|mathit|mbox|operatorname)\s*"
"""A command whose argument is words."""

CJK = r"[\u3005\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""A letter of Chinese, Japanese or Korean, where no space parts words."""

_MARKS = r"\u0300-\u036f\u064b-\u065f\u0670\u0900-\u0dff\u0e31-\u0e4e"
LETTER = rf"(?:(?![\d_])[\w{_MARKS}])"
"""A letter of any script, or a mark that belongs to one. Digits of other scripts are ASCII by then."""

NATIVE = rf"(?:(?![\d_\u0000-\u03ff\u1e00-\u1fff])[\w{_MARKS}])"
"""A letter of a script other than Latin and Greek: its words are no mathematics."""

FUNCTIONS = frozenset(
    "sin cos tan cot csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt".split()  # noqa: SIM905
)
"""Functions that may lack a backslash. `sec` is a unit."""

MATHS = FUNCTIONS | {"pi", "infinity", "inf", "Infinity", "Inf", "percent", "percentage", "and"}
"""Words that are mathematics."""

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_SUBSCRIPT = re.compile("[₀-₉]+")
_SUPERSCRIPT = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_ROOT_OF_BRACKETS = re.compile(r"(?:√|(?<![\\A-Za-z])\\?sqrt)\s*(?=\()")
_ROOT_OF_ONE = re.compile(
    r"(?:√\s*|(?<![\\A-Za-z])sqrt\s*(?=\d)|(?<![\\A-Za-z])sqrt\s+(?=[A-Za-z](?![A-Za-z])))"
    r"(\d+(?:\.\d+)?|[A-Za-z]|\\pi\b)"
)
_ROOT_OF_BRACES = re.compile(r"(?:√|(?<![\\A-Za-z])sqrt)\s*(?=\{)")
_NAMES = "|".join(sorted((FUNCTIONS - {"sqrt"}) | {"pi"}))
_INFINITY = re.compile(r"(?<![\\A-Za-z{])Inf(?:inity)?(?![A-Za-z])")
_NAME = re.compile(rf"{TEXT}\{{[^{{}}]*\}}|(?<![\\A-Za-z])(?:{_NAMES})(?![A-Za-z])(?!\d+\()")
_OVERLINED = re.compile("(?:\\d[\u0304\u0305\u0307])+")
_REPEATING = re.compile(
    r"(?<![\d.,}])(\d{0,40})\.(\d{0,40})"
    r"(?:\\(?:overline|bar|dot)\s*(?:\{(\d{1,40})\}|(\d))|(\d)\5\5+(?:\\[lc]?dots\b|\.{3}))(?!\s*\d)"
)
"""`0.1\\overline{6}`, `0.1\\bar6`, `0.1666...`: three equal digits before the dots repeat."""
_POWER_OF_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+(?:\.\d*)?|\.\d+)[eE]([+-]?)0*(\d+)(?!\w|\.\d|\s*[\^(])")
"""`5e-05` is a number. `2e - 3`, `2e` and `e-5` have Euler's number."""
_SMALL_FRACTION = re.compile("([⁰¹²³⁴⁵⁶⁷⁸⁹]+)[⁄/]([₀-₉]+)")
_SIGNED_POWER = re.compile(r"(\^|\*\*)\s*([+-]\s*\d+(?:\.\d+)?|-\s*[A-Za-z])(?![\d.])")
"""`10^-5` as plain text has it."""
_POWER_FRACTION = re.compile(r"\^\s*(\\[dtc]?frac\s*\{[^{}]*\}\s*\{[^{}]*\})")
_ARGUMENT = r"\s*(?:(\d|\\pi(?![A-Za-z])|[A-Za-z])|\{([^{}]*)\})"
_CHOOSE = re.compile(r"\{\s*([^{}\\]+)\\choose([^{}\\]+)\}|(\w+)\s*\\choose\s*(\w+)")
_ROOT_OF_SIGN = re.compile(r"(\\sqrt\s*\[[^][]*\])\s*(\d|[A-Za-z])")
_UNICODE_ROOT = re.compile(r"([∛∜])\s*(\d+|[A-Za-z])")
_NOT_EQUAL = re.compile(r"\\not\s*=")
_OF_SIGNS = re.compile(rf"(\\[dtc]?(?:frac|binom))(?![A-Za-z]){_ARGUMENT}{_ARGUMENT}")
"""`\\frac12`, `\\frac\\pi 4`, `\\frac{1}x`."""
_GLUED = re.compile(r"\\(?:[lg]eq?|[lg]t|neq?|approx|simeq|to)(?=\d)")
_LOG_E = re.compile(r"\\log\s*_\s*(?:e|\{\s*e\s*\})(?![A-Za-z])")
_OTHER_FRACTION = re.compile(r"\\(?:s|nice|x|flat)frac(?=\s*\{)")
_DEGREE = re.compile(r"(?<=\d)\s*\^\s*(?:o|\{\s*\{?\s*o\s*\}?\s*\})(?![A-Za-z\d}])")
_INTERVAL = re.compile(
    r"\s*(?:\\left\s*)?([](\[])([^][(){};,]+)[;,]([^][(){};,]+?)(?:\\right\s*)?([])\[])\s*"
)
"""An interval as in France: `[0;1[`."""


class _Characters(dict[int, str]):
    """Characters as ASCII or LaTeX, by code point: those of the table, digits of every script, full-width
    and mathematical letters, dashes and spaces. Others stay."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind = category(char)
        if kind == "Nd":
            char = str(decimal(char))
        elif _COMPATIBLE.match(char):
            char = normalize("NFKC", char).translate(self)
        elif kind in ("Pd", "Zs", "Cf"):
            char = {"Pd": "-", "Zs": " ", "Cf": ""}[kind]
        self[code] = char
        return char


_COMPATIBLE = re.compile("[\uff01-\uffe6\ufe50-\ufe6b\u2102-\u2134\U0001d400-\U0001d7cb]")
"""Full-width and small forms, letterlike symbols and mathematical letters."""


def table(name: str) -> dict[str, Any]:
    """The table in the file `name` in this folder."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
    return dict(yaml.load(Path(__file__).with_name(name).read_text(encoding="utf-8"), Loader=loader))


_SYMBOLS = _Characters({ord(char): text for chars, text in table("symbols.yaml").items() for char in chars})
for _char in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞":
    _SYMBOLS[ord(_char)] = r"\frac{{{}}}{{{}}}".format(*normalize("NFKC", _char).split("⁄"))


def symbols(text: str) -> str:
    r"""Unicode symbols, roots and repeating decimals as LaTeX: `5√2` -> `5\sqrt{2}`, `x⁴` -> `x^4`, `½` ->
    `\frac{1}{2}`, `0.\bar3` -> `\frac{3}{9}`."""
    text = _OVERLINED.sub(lambda match: rf"\overline{{{re.sub(r'[^0-9]', '', match[0])}}}", text)
    if not text.isascii():
        text = _SMALL_FRACTION.sub(
            lambda match: r"\frac{{{}}}{{{}}}".format(*(normalize("NFKC", part) for part in match.groups())),
            text,
        )
        text = _UNICODE_ROOT.sub(lambda match: rf"\sqrt[{'34'['∛∜'.index(match[1])]}]{{{match[2]}}}", text)
        text = _SUPERSCRIPT.sub(_exponent, text.translate(_SYMBOLS))
        text = _SUBSCRIPT.sub(lambda match: f"_{{{normalize('NFKC', match[0])}}}", text)
    text = _SCIENTIFIC.sub(r"\1\\times 10^{\2\3}", text)
    if "^" in text or "**" in text:
        text = _DEGREE.sub(r"^\\circ ", _POWER_FRACTION.sub(r"^{\1}", _SIGNED_POWER.sub(r"\1{\2}", text)))
    if "\\" in text:
        text = _NOT_EQUAL.sub(r"\\ne ", text)
        text = _OF_SIGNS.sub(r"\1{\2\3}{\4\5}", _OTHER_FRACTION.sub(r"\\frac", text))
        text = _CHOOSE.sub(r"\\binom{\1\3}{\2\4}", _ROOT_OF_SIGN.sub(r"\1{\2}", text))
        text = _GLUED.sub(r"\g<0> ", _LOG_E.sub(r"\\ln ", text))
    return _roots(_POWER_OF_TEN.sub(r"\\times ", _REPEATING.sub(_fraction, text)))


def named(text: str) -> str:
    r"""Plain constants and functions as commands, outside words: `2*pi` -> `2*\pi`, `sin(x)` -> `\sin(x)`.
    `log2(8)` stays: its base is ambiguous."""
    text = _INFINITY.sub(r"\\infty ", text)
    return _NAME.sub(lambda match: match[0] if match[0].startswith("\\") else "\\" + match[0], text)


def intervals(text: str) -> str:
    """`[0;1[` and a union of such as `[0,1)`."""
    matches = [_INTERVAL.fullmatch(part) for part in text.split("\\cup")]
    if not all(matches) or not any(
        match and (";" in match[0] or match[1] == "]" or match[4] == "[") for match in matches
    ):
        return text
    opening, closing = {"]": "("}, {"[": ")"}
    return "\\cup ".join(
        f"{opening.get(match[1], match[1])}{match[2]},{match[3]}{closing.get(match[4], match[4])}"
        for match in matches
        if match
    )


def _fraction(match: re.Match[str]) -> str:
    integer, fixed, *repeated = match.groups()
    digits = next(part for part in repeated if part)
    before = f"{integer}{fixed}" or "0"
    return rf"\frac{{{int(before + digits) - int(before)}}}{{{'9' * len(digits)}{'0' * len(fixed)}}}"


def _exponent(match: re.Match[str]) -> str:
    power = match.group().translate(_SUPERSCRIPTS)
    return f"^{power}" if len(power) == 1 else f"^{{{power}}}"


def _roots(text: str) -> str:
    if "√" not in text and "sqrt" not in text:
        return text
    closing = _round_brackets(text)
    chars = list(text)
    for match in _ROOT_OF_BRACKETS.finditer(text):
        if (end := closing.get(match.end())) is not None:
            chars[match.start() : match.end()] = ["\\sqrt", *[""] * (len(match.group()) - 1)]
            chars[match.end()], chars[end] = "{", "}"
    return _ROOT_OF_BRACES.sub(r"\\sqrt", _ROOT_OF_ONE.sub(r"\\sqrt{\1}", "".join(chars)))


def _round_brackets(text: str) -> dict[int, int]:
    """Index of each closed round bracket -> index of its closing bracket."""
    opened: list[int] = []
    closing: dict[int, int] = {}
    for i, char in enumerate(text):
        if char == "(":
            opened.append(i)
        elif char == ")" and opened:
            closing[opened.pop()] = i
    return closing
