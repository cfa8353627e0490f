"""Removes the wrapping of an answer, with the words for "the answer is" in the most used languages
(`languages.yaml`), and splits and measures its text.

All functions take linear time and are safe on hostile text."""

import re
from collections.abc import Iterator
from functools import lru_cache

from hora_rl.actors.verifier.equality.notation import TEXT, symbols, table
from hora_rl.actors.verifier.equality.typeface import untypeset

_LANGUAGES: dict[str, dict[str, str]] = table("languages.yaml")
_EMPHASIS = r"[\s*_`]*"
_NUMBER_NEXT = r"(?=\s+[-−$\\(\[*]*\d)"
"""`उत्तर 42 है`: the verb comes last."""


def _nouns(words: dict[str, str]) -> list[str]:
    return [noun.replace("_", " ") for noun in words["nouns"].split()]


def _pattern(words: dict[str, str]) -> str:
    noun = f"(?<![A-Za-z])(?:{'|'.join(_nouns(words))})"
    noun += rf"(?:\s+(?:{words['more']}))?" if "more" in words else ""
    sentence = rf"{noun}{_EMPHASIS}(?:{words.get('link', '')}|[:=：】]){_EMPHASIS}[:：]?"
    return rf"{sentence}|{noun}{_NUMBER_NEXT}" if "verb" in words else sentence


ANSWER_IS = "|".join(map(_pattern, _LANGUAGES.values()))
"""Pattern of "answer is", from the noun on. Case is to be ignored."""

IN_ALL = "一?共计?|總?共計|[总總]共|合[计計]|全部で"
"""Pattern of "in all" in front of a number, in Chinese and Japanese."""

_ANSWERS_ARE = [(_nouns(words), re.compile(_pattern(words), re.I)) for words in _LANGUAGES.values()]
_VERBS = "|".join(words["verb"] for words in _LANGUAGES.values() if "verb" in words)
_CLOSING = re.compile(rf"(?:{_VERBS}|\.\s*I hope it is correct)[\s.。।۔]*\Z", re.I)

BOXED = "\\boxed{"
SPACE = r"(?:\\[,;:! ]|\\(?:q?quad|(?:thin|med|thick)space)(?![A-Za-z])|~|\s)"
"""Regular expression for one piece of LaTeX spacing."""

_LEAD = re.compile(
    rf"(?:\\displaystyle\b|({TEXT}\{{\s*)?(?:the\s+)?(?:final\s+)?(?:{ANSWER_IS})|{IN_ALL})\s*(\}})?",
    re.IGNORECASE,
)
_DELIMITERS = [("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("``", "''")]
_DELIMITERS += [(pair[0], pair[1]) for pair in "** `` \"\" '' “” ‘’ «» 「」 „“".split()]  # noqa: SIM905
_EDGES = re.compile(rf"^{SPACE}+|{SPACE}+$")
_END = re.compile(rf"(?<=\S){SPACE}*(?:\\\\|\\checkmark|[✅✓✔☑\ufe0f])+$")
"""A line break or a check mark behind an answer."""
_LINES = re.compile(
    r"\\begin\{((?:align(?:ed)?|equation|gather(?:ed)?|split|multline)\*?|cases(?=[^&]*\Z))\}(.*)\\end\{\1\}",
    re.DOTALL,
)
"""Lines of a formula, as one."""
_SPACING = re.compile(r"(?<!\d) | (?!\d)")
_COMMAND = re.compile(r"\\[A-Za-z]+")


@lru_cache(maxsize=256)
def bare(text: str) -> str:
    r"""The answer without its wrapping: white space, a full stop, `$…$`, `\(…\)`, `\boxed{…}`, "The answer
    is".

    Mathematical Unicode characters become LaTeX commands."""
    text = unwrapped(text)
    return symbols(_unboxed(text)) if BOXED in text else text


def unwrapped(text: str) -> str:
    """`bare`, but boxes within other text stay."""
    text = symbols(untypeset(text))
    before = None
    while text != before:
        before = text
        text = _EDGES.sub("", text.strip())
        if lead := _LEAD.match(text):
            text = text[lead.end() :]
            if lead[1] and not lead[2]:  # `\text{The answer is 13}`
                text = symbols(untypeset(lead[1] + text))
            elif lead[2] and not lead[1]:
                text = "}" + text
        text = _END.sub("", text)
        if lines := _LINES.fullmatch(text):
            text = re.sub(
                r"\s*\\\\\s*&?\s*(=)?", lambda match: match[1] or ", ", _END.sub("", lines[2].rstrip())
            )
            text = text.replace("&", "")
        if text.endswith(".") and not text.endswith((r"\.", "..")):
            text = text[:-1].rstrip()
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : -len(closing)]
            if text.startswith(opening) and text.endswith(closing) and opening not in inner and inner:
                text = inner
        if text.startswith(BOXED) and closing_brace(text, len(BOXED) - 1) == len(text) - 1:
            text = text[len(BOXED) : -1]
        if text.startswith("{") and closing_brace(text, 0) == len(text) - 1:
            text = text[1:-1]
    return text


def _unboxed(text: str) -> str:
    r"""`\boxed{(1,2)} and \boxed{(3,4)}` -> `(1,2) and (3,4)`: every box is part of the answer."""
    while (start := text.rfind(BOXED)) >= 0:
        end = closing_brace(text, start + len(BOXED) - 1)
        if end < 0:
            return text
        text = f"{text[:start]} {text[start + len(BOXED) : end]} {text[end + 1 :]}"
    return " ".join(text.split())


def closing_brace(text: str, start: int) -> int:
    """Index of the brace that closes the one at `start`; -1 if none."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
    return -1


def tight(text: str) -> str:
    """The text without spacing, except between digits: `2 1/2` is not `21/2`. `{,}` becomes a comma."""
    text = re.sub(r"\\[,;: ]|~", " ", text.replace("{,}", ",").replace(r"\!", ""))
    return _SPACING.sub("", " ".join(text.split()))


def split_outside(text: str, separator: re.Pattern[str]) -> list[str]:
    """Parts of the text, split at separators outside brackets."""
    parts, start, depth, i = [], 0, 0, 0
    while i < len(text):
        if not depth and (match := separator.match(text, i)) and match.end() > i:
            parts.append(text[start:i])
            start = i = match.end()
            continue
        depth = max(0, depth + (text[i] in "([{") - (text[i] in ")]}"))
        i += 1
    return [*parts, text[start:]]


def letters(text: str) -> set[str]:
    """Variables in a text: letters and Greek letters, without commands, words, `e` and `i`."""
    text = re.sub(TEXT + r"\{[^{}]*\}", "", text)
    greek = set(re.findall(rf"\\(?:{GREEK})\b", text))
    return greek | set(re.findall(r"[A-Za-z]", _COMMAND.sub(" ", text))) - {"e", "i"}


def behind_answer_is(lines: list[str]) -> Iterator[str]:
    """The text after the last "answer is" of each line that has it, the last line first, without the verb at
    its end."""
    text = "\n".join(lines).lower()
    patterns = [pattern for nouns, pattern in _ANSWERS_ARE if any(noun in text for noun in nouns)]
    for line in reversed(lines if patterns else []):
        ends = [match.end() for pattern in patterns for match in pattern.finditer(line)]
        if ends:
            yield _CLOSING.sub("", line[max(ends) :])


GREEK = (
    "alpha|beta|gamma|delta|varepsilon|epsilon|zeta|eta|theta|vartheta|iota|kappa|lambda|mu|nu|xi|rho|sigma"
    "|tau|varphi|phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell"
)
r"""Commands that are variables. `\pi` is a number."""
