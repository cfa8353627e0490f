r"""Finds the final answer in a completion, and checks the completion's format.

Only the text after the thought counts. `tags`: the last complete `<answer>…</answer>` (paper, section 4).
`boxed`: the last `\boxed{…}` with balanced braces. `final`: text after the last "answer is" or "answer:" on
its line, otherwise the last non-empty line. `auto`: the first of these three that exists. `lenient`: as
`auto`, and in natural text the last number or expression.

All functions take linear time, also on hostile text."""

import re
from collections.abc import Callable

from hora_rl.actors.verifier.equality.texts import behind_answer_is
from hora_rl.actors.verifier.last_expression import last_expression
from hora_rl.common.answer_format import CLOSING, OPENING, TAGS, after_thought, unclosed, whole_thought
from hora_rl.common.user_code import failures_named, load_function

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
    """The text after "answer is" in the last line that has it."""
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


def extract_auto(completion: str) -> str | None:
    """The answer tag, else the box, else the final line."""
    return extract_tags(completion) or extract_boxed(completion) or extract_final(completion)


ANSWERS: dict[str, Extract] = {
    "tags": extract_tags,
    "boxed": extract_boxed,
    "final": extract_final,
    "auto": extract_auto,
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
