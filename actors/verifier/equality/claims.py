r"""The value that an answer claims, as in `x = 28`, and answers in words: `\text{Evelyn}`, `3 cats`.

`x^2 = 28` and `\sum_{n=1}^{7} n` are problems, `27 \Rightarrow 28` a step, `28\text{ or 27}` two answers,
`1,2,3,\ldots` an open list: none of them claims 28. If the gold answer has the same form, the answer is
compared unchanged. Words are compared as words, not as products of letters: `left` is not `felt`."""

import re

from hora_rl.actors.verifier.equality.notation import CJK, FUNCTIONS, LETTER, MATHS, NATIVE, TEXT
from hora_rl.actors.verifier.equality.texts import GREEK, SPACE, bare, letters, split_outside, ungrouped
from hora_rl.actors.verifier.equality.units import is_unit_word

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
_WORDS = re.compile(rf"{TEXT}\{{([^{{}}\\]*{LETTER}[^{{}}\\]*)\}}")
_TEXTS = re.compile(TEXT + r"\{([^{}\\]*)\}")
_EMPTY = re.compile(
    r"(?:there (?:is|are) )?no (?:real )?solutions?(?: exists?)?|(?:the )?empty set|no such \w+(?: exists?)?"
)
_ALL = re.compile(r"(?:all|any) reals?(?: numbers?)?")
_PROSE = re.compile(rf"(?:{LETTER}|[\s,;.!?'’])+")
_CAPITALS = re.compile(r"[A-Z](?:\s*[A-Z])+")
_NAME = re.compile(rf"(?<!\w)(?:{LETTER}{{3,}}|[A-Z][A-Za-z]|{NATIVE}+)(?!\w)")
"""A word of prose: three letters, or two with a capital first. `xy` is a product."""
_LATIN = r"[^\W\d_]"
_MATHS_SIGN = re.compile(
    rf"(?!{LETTER})[^\w\s,;:.!?'’\"()-]|_|(?<!{_LATIN})-(?!\d)|-(?!\w)|(?<={_LATIN})-(?=\d)"
)
"""A sign that makes a text mathematics, unlike the hyphens of `twenty-one`, `3-4 cats` and `-3 cats`."""
_LONE_WORD = re.compile(rf"(?<!\w)(?!{CJK}){LETTER}{{3,}}(?![\w(])")
"""A word among digits. `2xyz` is a product, `abs(x)` a function."""
_CHOICE = rf"(?:{TEXT}\{{)?\s*(?:(?i:option|choice|opción|opção|вариант)\s*|[选選][项項择擇]?\s*)?"
_LETTER_OF_OPTION = re.compile(rf"{_CHOICE}\(?([A-J])\)?\s*\}}?")
_OPTION = re.compile(rf"{_CHOICE}(?:\(?([A-J])\)|([A-J])[.:](?=\s))(.*)", re.DOTALL)
_SEPARATED = re.compile(r"\)?\s*(?:[,;&]|,?\s*\band\b|和|及)\s*\(?")
_SEVERAL = re.compile(r"(?<![A-Za-z])(?:[A-J]\)|or\b|and\b|not\b)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_BREAK = re.compile(r"[,;]|\b(?:and|or)\b")


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
    r"""Whether a text names a quantity: `x`, `f(3)`, `AB`, `\angle A`, `\sin B`, `P(X>2)`, `\text{Area}`.
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


def spelt_set(text: str) -> str | None:
    r"""A set in words as LaTeX: `no solution` -> `\emptyset`, `all reals` -> `\mathbb{R}`; None otherwise."""
    words = _said(bare(text))
    if _EMPTY.fullmatch(words):
        return r"\emptyset"
    return r"\mathbb{R}" if _ALL.fullmatch(words) else None


def is_words(text: str) -> bool:
    r"""Whether a text is only words: `hello`, `Mary, John`, `No`, `XIV`, or one command as `\text{2 cats}`.
    `xy`, `sin x` and `x and y` are mathematics, `no solution` is a set."""
    text = bare(text)
    if spelt_set(text):
        return False
    if match := _WORDS.fullmatch(text):
        return len(match[1].strip()) > 1
    if not _PROSE.fullmatch(text):
        return False
    if _CAPITALS.fullmatch(text) or text in FUNCTIONS:
        return True
    return any(word not in MATHS for word in _NAME.findall(text))


def unworded(text: str) -> str:
    r"""The text without text commands: `\text{A1}` -> `A1`."""
    return _TEXTS.sub(r"\1", text)


def word_verdict(gold: str, answer: str) -> bool | None:
    """The verdict if the gold answer is plain words or a date; None if mathematics decides. Words among
    digits must be in the answer too, in any order of a list: `3.0 cats` for `3 cats`."""
    gold, answer = bare(gold), bare(answer)
    if is_words(gold):
        return _says(gold, answer)
    same = _said(gold) == _said(answer)
    if _DATE.fullmatch(gold):
        return same
    words = [] if spelt_set(gold) or _MATHS_SIGN.search(gold) else _lone_words(gold)
    if not words:
        return None
    return True if same else None if words == _lone_words(_said(answer)) else False


def option_verdict(gold: str, answer: str) -> bool | None:
    r"""The verdict on an option of a multiple choice, one side with its text: `\textbf{(B)}\ 12`; else
    None."""
    gold, answer = bare(gold), bare(answer)
    if (several := _letters(gold)) and (others := _letters(answer)):
        return several == others
    for plain, full in ((gold, answer), (answer, gold)):
        letter, option = _LETTER_OF_OPTION.fullmatch(plain), _OPTION.fullmatch(full)
        if letter and (alone := _LETTER_OF_OPTION.fullmatch(full)) and len(plain + full) > 2:
            return letter[1] == alone[1]
        if letter and option and not _SEVERAL.search(option[3]):
            return letter[1] == (option[1] or option[2])
    return None


def _letters(text: str) -> set[str] | None:
    """The options of a multiple choice with several right ones: `A, C`, `\\text{A and C}`."""
    options = _SEPARATED.split(unworded(text).strip("() "))
    several = len(options) > 1 and set("ABCDEFGHIJ").issuperset(options)
    return set(options) if several else None


def _says(gold: str, answer: str) -> bool:
    """Whether the answer is these words or claims them: `x = hello`."""
    words = _listed(_said(gold))
    if words == _listed(_said(answer)):
        return True
    values = claim(gold, answer) if "=" in answer else None
    return bool(values) and all(_listed(_said(value)) == words for value in values or [])


def _said(text: str) -> str:
    """The plain words of a text, including those in text commands."""
    words = re.sub(SPACE, " ", _TEXTS.sub(r" \1 ", text)).lower()
    return " ".join(words.strip("() .").split())


def _listed(words: str) -> list[str]:
    return sorted(part for piece in _BREAK.split(words) if (part := piece.strip(" .!?")))


def _lone_words(text: str) -> list[list[str]]:
    """The words of each list part, without mathematics and units; parts in alphabetical order."""
    parts = [_LONE_WORD.findall(part.lower()) for part in _BREAK.split(text)]
    kept = [[word for word in part if word not in MATHS and not is_unit_word(word)] for part in parts]
    return sorted(part for part in kept if part)
