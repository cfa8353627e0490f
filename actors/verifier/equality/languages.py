"""The words for "the answer is" in the most used languages (`languages.yaml`)."""

import re
from collections.abc import Iterator

from hora_rl.actors.verifier.equality.notation import table

_WORDS: dict[str, dict[str, str]] = table("languages.yaml")
_MARKS = r"[\s*_`]*"
_NUMBER_NEXT = r"(?=\s+[-−$\\(\[*]*\d)"
"""`उत्तर 42 है`: the verb comes last."""


def _nouns(words: dict[str, str]) -> list[str]:
    return [noun.replace("_", " ") for noun in words["nouns"].split()]


def _pattern(words: dict[str, str]) -> str:
    noun = f"(?<![A-Za-z])(?:{'|'.join(_nouns(words))})"
    noun += rf"(?:\s+(?:{words['more']}))?" if "more" in words else ""
    sentence = rf"{noun}{_MARKS}(?:{words.get('link', '')}|[:=：】]){_MARKS}[:：]?"
    return rf"{sentence}|{noun}{_NUMBER_NEXT}" if "verb" in words else sentence


ANSWER_IS = "|".join(map(_pattern, _WORDS.values()))
"""Pattern of "answer is", from the noun on. Case is to be ignored."""

IN_ALL = "一?共计?|總?共計|[总總]共|合[计計]|全部で"
"""Pattern of "in all" in front of a number, in Chinese and Japanese."""

_PATTERNS = [(_nouns(words), re.compile(_pattern(words), re.I)) for words in _WORDS.values()]
_VERBS = "|".join(words["verb"] for words in _WORDS.values() if "verb" in words)
_CLOSING = re.compile(rf"(?:{_VERBS}|\.\s*I hope it is correct)[\s.。।۔]*\Z", re.I)


def behind_answer_is(lines: list[str]) -> Iterator[str]:
    """The text after the last "answer is" of each line that has it, the last line first, without the verb at
    its end."""
    text = "\n".join(lines).lower()
    patterns = [pattern for nouns, pattern in _PATTERNS if any(noun in text for noun in nouns)]
    for line in reversed(lines if patterns else []):
        ends = [match.end() for pattern in patterns for match in pattern.finditer(line)]
        if ends:
            yield _CLOSING.sub("", line[max(ends) :])
