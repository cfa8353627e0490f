r"""Finds the final answer in a completion, and checks the completion's format.

Only the text after the thought counts. `tags`: the last complete `<answer>…</answer>` (paper, section 4).
`boxed`: the last `\boxed{…}` with balanced braces. `final`: text after the last "answer is" or "answer:" on
its line, otherwise the last non-empty line. `auto`: the first of these three that exists. `lenient`: as
`auto`, and in natural text the last number or expression, with its unit: `So 7 + 5 = 12 apples.` -> `12
apples`.

All functions take linear time, also on hostile text."""

import re
from collections.abc import Callable
from typing import NamedTuple

from hora_rl.actors.verifier.equality.notation import FUNCTIONS, NATIVE, TEXT
from hora_rl.actors.verifier.equality.texts import behind_answer_is
from hora_rl.actors.verifier.equality.units import is_more, is_unit_word
from hora_rl.common.answer_format import CLOSING, OPENING, TAGS, after_thought, unclosed, whole_thought
from hora_rl.common.user_code import failures_named, load_function

LONGEST = 2000
"""Only the last so many characters of a text are read."""

_FORMULA = (
    r"\$\$([^$]{1,500})\$\$|(?<!\\)\$(?!\s)([^$]{1,500})(?<![\s\\])\$(?!\d)"
    r"|\\\((.{1,500}?)\\\)|\\\[(.{1,500}?)\\\]"
)
_PIECE = re.compile(rf"(?:{_FORMULA})([.,;:!?]?)|(?:{TEXT}\{{[^{{}}]*\}}|\S)+", re.DOTALL)
_MARKS = "*_`\"'“”’«»„「」『』"
_ENDS = ".,;:!?"
_NAMED = re.compile(
    rf"{TEXT}\{{[^{{}}]*\}}|\\[A-Za-z]+|(?<![A-Za-z])(?:{'|'.join(FUNCTIONS)}|pi)(?![A-Za-z])"
)
_WORD = re.compile(rf"[A-Za-z]{{2}}|[\u00c0-\u024f]|[\u0370-\u03ff\u1f00-\u1fff]{{3}}|{NATIVE}")
_NATIVE = re.compile(rf"{NATIVE}+")
_PUNCTUATION = str.maketrans("，。；：！？、（）،؛؟۔।", ",.;:!?,(),;?..")
_GLUED = re.compile(r"(\d)(?!(?:st|nd|rd|th)\b)([A-Za-z]{2,}\.?)(?=[\s.,;:!?]|\Z)")
_VALUE = re.compile(r"\d|\\[A-Za-z]|[A-Za-z)]\s*[-+*/^]\s*[A-Za-z(]|∞|π|√")
_SIDE = re.compile(r"=|≈|\\(?:approx|simeq|to|[Rr]ightarrow)\b|→|->")
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
_FRAGMENT = " \t\n,;#&*/+<|-\\"
"""Characters at the end of a truncated completion."""
_COUNTED = re.compile(rf"[a-z]{{3,20}}|{NATIVE}+")
_NO_UNIT = re.compile(
    r"and|are|but|for|from|has|have|not|that|the|then|they|times|was|were|which|with|because|since"
)
"""Words after a number that are no unit."""
Extract = Callable[[str], str | None]
_BOXED = re.compile(r"\\(?:f?boxed|fbox|framebox)\s*\{")
_BOXED_BARE = re.compile(r"\\f?boxed(?![A-Za-z])\s*((?:[-+−]?[\d.\\]|[A-J]\b)(?:(?!\\[)\]])[^\s$])*)")
"""A value behind `\\boxed` without braces, up to the next space."""
_BRACES = re.compile(r"\\[\\{}]|[{}]")  # an escaped brace closes nothing
_EMPHASIS = "*_` \t"
_HEADING = re.compile(r"^#+\s+(?=\S)")
_STOP = re.compile(r"(?<=[*_`])\.$")
_SENTENCE = re.compile(r"(?<=[.!?])\s|(?<=[。！？।۔])")
_CLOSED = {r"\]": r"\[", r"\)": r"\(", "$$": "$$"}
"""End of a formula -> its beginning."""


class _Piece(NamedTuple):
    text: str
    ends: bool
    """Whether punctuation follows."""

    @property
    def is_math(self) -> bool:
        return bool(self.text) and (bool(re.search(r"[\\{}^=]", self.text)) or not self.is_word)

    @property
    def is_word(self) -> bool:
        return _WORD.search(_NAMED.sub("0", self.text)) is not None


def last_expression(text: str) -> str | None:
    """The last number or expression; of an equation its last side; a text without words as is; else None."""
    if not _VALUE.search(text):
        return None
    read = text[-LONGEST:]
    if not read.isascii():  # words of other scripts apart from numbers: `共42个。` -> `共 42 个.`
        read = _NATIVE.sub(r" \g<0> ", read.translate(_PUNCTUATION))
    pieces = _pieces(read)
    if not any(piece.is_word for piece in pieces):
        return text.strip().rstrip(_FRAGMENT)
    last, i = None, 0
    while i < len(pieces):
        run, after = _run(pieces, i)
        last, i = _value(run) or last, max(after, i + 1)
    return last


def _pieces(text: str) -> list[_Piece]:
    """Formulas and words, without emphasis and closing punctuation."""
    pieces = []
    for match in _PIECE.finditer(_GLUED.sub(r"\1 \2", text)):
        *formulas, end = match.groups()
        word = match[0].strip(_MARKS)
        core = next(filter(None, formulas), word.rstrip(_ENDS).rstrip(_MARKS).lstrip(_MARKS))
        pieces.append(_Piece(core, bool(end) or (end is None and word[-1:] in _ENDS)))
    return pieces


def _run(pieces: list[_Piece], start: int) -> tuple[str, int]:
    """The expression that begins at this piece, with its units, and the index after it."""
    run, i = "", start
    while i < len(pieces):
        piece = pieces[i]
        text = piece.text if piece.is_math else _unit(pieces, i) if run else None
        if text is None:
            break
        run, i = f"{run} {text}", i + 1
        if not piece.is_math and text != "and" and not is_unit_word(text):
            break
        if piece.ends:
            if all(run.count(opening) <= run.count(closing) for opening, closing in _BRACKETS):
                break
            run += ","
    return run, i


def _unit(pieces: list[_Piece], i: int) -> str | None:
    """The piece as the unit of the number before it; None if it is no unit."""
    word = pieces[i].text
    follows = i + 1 < len(pieces)
    if word == "and" and follows and is_unit_word(pieces[i - 1].text) and pieces[i + 1].text[:1].isdigit():
        return word
    if word.lower() == "in" and follows and not pieces[i].ends:
        return None
    if is_unit_word(word):
        return word
    counts = pieces[i - 1].is_math and _COUNTED.fullmatch(word) and not _NO_UNIT.fullmatch(word)
    return word if counts and not (_NATIVE.match(word) and is_more(word)) else None


def _value(run: str) -> str | None:
    """The last side of a run that has a value, without unclosed brackets."""
    sides = [side.strip(" ,") for side in _SIDE.split(run) if _VALUE.search(side)]
    if not sides:
        return None
    text = re.sub(r"^(?:y\s+)?[aAI]\s+(?=[-\d\\])", "", sides[-1])  # `Il y a 42`
    for opening, closing in _BRACKETS:
        more = text.count(opening) - text.count(closing)
        if more > 0:
            text = text.replace(opening, "", more)
        elif more < 0:
            text = text[::-1].replace(closing, "", -more)[::-1]
    return text.strip().rstrip(_FRAGMENT) or None


def extract_tags(completion: str) -> str | None:
    """Text of the last complete answer tag after the thought, stripped; None if missing or empty."""
    text = after_thought(completion) or ""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    if start < 0:
        return None
    return text[start + len("<answer>") : end].strip() or None


def extract_boxed(completion: str) -> str | None:
    r"""Content of the last closed `\boxed{…}` after the thought; None if missing or empty."""
    text = after_thought(completion)
    if text is None:
        return None
    opens = {match.end() - 1 for match in _BOXED.finditer(text)}
    stack: list[int] = []
    last = (0, 0)
    for match in _BRACES.finditer(text):
        if match.group() == "{":
            stack.append(match.start())
        elif match.group() == "}" and stack and (start := stack.pop()) in opens:
            last = start + 1, match.start()
    bare = [match for match in _BOXED_BARE.finditer(text) if match.start() >= last[1]]
    if bare:
        return bare[-1][1].rstrip(".,;:!?。，") or None
    return text[slice(*last)].strip() or None


def extract_final(completion: str) -> str | None:
    """The text after the last "answer is" or "answer:" on its line, otherwise the last line; after the
    thought and without emphasis. A formula that ends on its own line is joined to one line."""
    lines = _lines(after_thought(completion) or "")
    return _behind_answer_is(lines) or (lines[-1] if lines else None)


def extract_lenient(completion: str) -> str | None:
    """As `auto`; in natural text the last expression of the answer's sentence, otherwise of any line."""
    answer = extract_tags(completion) or extract_boxed(completion)
    if answer is not None:
        return last_expression(answer) or answer
    lines = _lines(after_thought(completion) or "")
    if sentence := _behind_answer_is(lines):
        return last_expression(_SENTENCE.split(sentence)[0]) or sentence
    return next(filter(None, map(last_expression, reversed(lines))), lines[-1] if lines else None)


def _behind_answer_is(lines: list[str]) -> str | None:
    return next(filter(None, map(_plain, behind_answer_is(lines))), None)


def _lines(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip(_EMPHASIS)]
    closing = lines[-1].strip().removesuffix(".") if lines else ""
    if closing in _CLOSED:
        before = "\n".join(lines[:-1])
        start = before.rfind(_CLOSED[closing])
        if start >= 0:
            formula = " ".join([*before[start:].splitlines(), closing])
            lines = (before[:start] + formula).splitlines()
    return [plain for line in lines if (plain := _plain(line))]


def _plain(line: str) -> str:
    """A line without heading and emphasis marks, also before a full stop: `**72**.` -> `72`."""
    line = _HEADING.sub("", line.strip(_EMPHASIS)).strip(_EMPHASIS)
    return _STOP.sub("", line).strip(_EMPHASIS)


ANSWERS: dict[str, Extract] = {
    "tags": extract_tags,
    "boxed": extract_boxed,
    "final": extract_final,
    "auto": lambda text: extract_tags(text) or extract_boxed(text) or extract_final(text),
    "lenient": extract_lenient,
}


def format_reward(completion: str, mode: str = "tags") -> float:
    """1.0 if the completion has the format of `mode`, ignoring surrounding white space.

    `tags`: one thought, white space, one answer, nothing else. Other modes: no thought, or a closed one at
    the start; then an answer, if the mode is built in."""
    text = completion.strip()
    thought = whole_thought(text)
    if mode == "tags":
        return float(thought is True and _tagged(text))
    return float(thought is not False and (mode not in ANSWERS or ANSWERS[mode](text) is not None))


def _tagged(text: str) -> bool:
    """Whether nothing but one answer follows the thought, and none is in it."""
    answer = (after_thought(text) or "").strip()
    alone = answer.startswith("<answer>") and answer.endswith("</answer>")
    return alone and all(text.count(tag) == 1 for tag in TAGS)


def example(mode: str, answer: str, opened: str = "") -> str:
    """A completion with this answer in the format of `mode` (`plain`: no format). `opened`: see `prefill`."""
    closing = unclosed(opened)
    thought = f"…{closing}" if closing else "" if opened else f"{OPENING}…{CLOSING}"
    if mode == "tags":
        return f"{thought}<answer>{answer}</answer>"
    sentence = f"The answer is {answer}"
    forms = {"plain": answer, "final": sentence, "lenient": sentence}
    sentence = forms.get(mode, f"\\boxed{{{answer}}}")
    return f"{thought}\n\n{sentence}" if closing else sentence


def example_program(mode: str, block: str, opened: str = "") -> str:
    """A completion with this code block: in answer tags for `tags`, otherwise after a thought."""
    if mode == "tags":
        return example(mode, block, opened)
    closing = unclosed(opened)
    return f"…{closing}\n\n{block}" if closing else block


def load_extract(name: str) -> Extract:
    """The function for `reward.answer`: built in or `package.module:function`. Raises ConfigError."""
    if name in ANSWERS:
        return ANSWERS[name]
    return load_function("reward.answer", name, f"{', '.join(ANSWERS)} or ")


def user_answer(name: str, completion: str) -> str | None:
    """The answer found by a user's function. Raises ValueError if that fails or returns no text or None."""
    extract = load_extract(name)
    with failures_named(f"reward.answer: {name!r}"):
        answer = extract(completion)
    if answer is not None and not isinstance(answer, str):
        raise ValueError(
            f"reward.answer: {name!r} returned {answer!r:.60}: it must return text, or None for no answer"
        )
    return answer.strip() or None if answer else None
