r"""The value that an answer claims, as in `x = 28`.

`x^2 = 28` and `\sum_{n=1}^{7} n` are problems, `27 \Rightarrow 28` a step, `28\text{ or 27}` two answers,
`1,2,3,\ldots` an open list: none of them claims 28. If the gold answer has the same form, the answer is
compared unchanged."""

import re

from hora_rl.actors.verifier.equality.notation import TEXT
from hora_rl.actors.verifier.equality.numerals import ungrouped
from hora_rl.actors.verifier.equality.texts import GREEK, SPACE, letters, split_outside

_LEADING = re.compile(
    rf"^(?:{SPACE}|\\(?:therefore|implies|approx|simeq|(?:[Ll]ong)?[Rr]ightarrow|to)\b|=>|=(?!=))+"
)
DOTS = re.compile(r"\\[lc]?dots\b|\\dots[cbmio]\b|\.{3,}")
_DECIMAL_DOTS = re.compile(r"(\d\.\d+)(?:\\[lc]?dots|\.{3,})$")
_TWO_NUMBERS = re.compile(rf"(?<![\d.}}])(?<!\\log_)\d+(?:\.\d+)?{SPACE}+(?!\d+\s*/)(?=[\d.])(?![^ ]*/)")
_EQUALS = re.compile(r"(?<![<>!=\\]):?=(?![=>])")
_UNEVALUATED = re.compile(r"\\(?:sum|prod|i{1,3}nt|oint|lim|limsup|liminf|bigcup|bigcap)(?![A-Za-z])")
_MARKED = re.compile(r"(?:\d\s*(?::|\\colon\b)|')\s*\d")
_OF_PROBLEMS = (_TWO_NUMBERS, _UNEVALUATED, _MARKED)
"""Two numbers, sums, limits, `3:4` and `1'3` claim no value, unless the gold answer has that form."""
_APPROX = re.compile(r"\\(?:approx|simeq)\b")
_IN = re.compile(r"\\in\b")
_SET = re.compile(r"\s*(?:\\left\s*)?(?:\\\{|[\[(\]]|\\mathbb|\\emptyset|\\varnothing)")
_SYSTEM = re.compile(rf"[,;]|\b(?:and|or)\b|{TEXT}\{{[\s,]*(?:and|or)\s*\}}|\\l(?:and|or)\b")

_TRIG = r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?\b(?:\s*\^\s*\{?-?\d\}?)?"
_OPERATOR = r"\\(?:det|dim|gcd|max|min|arg|Pr|Re|Im|ker|deg|operatorname\s*\{[^{}]*\})"
_DECORATION = (
    r"\\(?:overline|overrightarrow|overset|vec|hat|bar|tilde|widehat|angle|measuredangle|triangle|square|left|right"
    r"|math(?:bf|rm|cal|bb|it|sf)|lvert|rvert|vert)\b|\|"
)
_INDEX = r"_\s*(?:\{[^{}]*\}|\\?\w+)|\^\s*\{?\s*(?:-1|\\circ|\\prime|\*|T)\s*\}?|\\prime\b|'"


def claim(gold: str, answer: str) -> list[str] | None:
    """The claimed values, all of which must equal the gold answer; None if the answer claims none."""
    answer = ungrouped(answer)
    answer = _DECIMAL_DOTS.sub(r"\1", _LEADING.sub("", answer))
    if bool(DOTS.search(answer)) != bool(DOTS.search(gold)):
        return None
    if any(form.search(answer) and not form.search(gold) for form in _OF_PROBLEMS):
        return None
    if _EQUALS.search(gold):
        return [answer]
    element = split_outside(answer, _IN)
    if len(element) == 2 and is_name(element[0]) and not _IN.search(gold):
        return [element[1]] if _SET.match(element[1]) else None
    about = split_outside(answer, _APPROX)
    if len(about) > 1:
        answer = about[1] if is_name(about[0]) else about[0]
    return _sides(gold, answer)


def _sides(gold: str, answer: str) -> list[str] | None:
    """The sides of an equation that are values. All earlier sides must be names."""
    sides = [side.strip() for side in split_outside(answer, _EQUALS)]
    if len(sides) == 1 or len(split_outside(answer, _SYSTEM)) > 1:
        return [answer]
    if is_name(sides[-1]) and not letters(gold) and not any(letters(side) for side in sides[:-1]):
        sides = [sides[-1], *sides[:-1]]  # 28 = x
    values = [sides[-1]]
    for side in sides[:-1]:
        unknowns = letters(side)
        if not side or is_name(side):
            continue
        if unknowns <= letters(gold):  # 54/2, or letters that the gold answer contains
            values.append(side)
        elif len(unknowns) == 1 or gold.strip() == "0":
            return None
    return values


def is_name(text: str) -> bool:
    r"""Whether a text names a quantity: `x`, `f(3)`, `AB`, `\angle A`, `\sin B`, `P(X>2)`, `\text{Area}`,
    `S_{10}`.

    `x^2`, `27x`, `\sqrt{x}` and `|x|` do not: an equation with them is unsolved."""
    if re.sub(r"\s|\\left|\\right|\\[lr]?vert", "", text) in ("|x|", "x|x"):
        return False
    text = re.sub(TEXT + r"\{[^{}]*[A-Za-z]{2}[^{}]*\}", "A", text)
    text = re.sub(rf"{_TRIG}|{_OPERATOR}", "A", text)
    text = re.sub(rf"\\(?:{GREEK})\b", "A", text)
    text = re.sub(_DECORATION, "", text)
    text = re.sub(_INDEX, "", text)
    text = re.sub(r"(?<=[A-Za-z])\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\[\]]*\])", "", text)
    return re.fullmatch(r"[\[({\s]*[A-Za-z][A-Za-z\s{}]*[\])}\s]*", text) is not None
