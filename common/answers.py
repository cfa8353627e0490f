r"""Where a completion's final answer is, whether the completion has the required form, and the instructions
that ask for it.

`tags` the text of the last complete `<answer>…</answer>` (paper, section 4). `boxed` the last `\boxed{…}`
whose braces balance, after the thought. `final` the text after the last "answer is" or "answer:" on its line,
otherwise the last line that is not empty, after the thought. `auto` the first of these three that exists.
`lenient` as `auto`, and of natural text its last number or expression.

The thought is `<think>…</think>`. A template may write its opening tag at the end of the prompt (Qwen3's
thinking models, R1): `prefill` finds it, and completions are judged with it in front. All this takes linear
time, also on hostile text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hora_rl.common.last_expression import last_expression
from hora_rl.common.user_code import failures_named, load_function

Extract = Callable[[str], str | None]

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_PREFILL = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
_BOXED = re.compile(r"\\f?boxed\s*\{")
_BRACES = re.compile(r"\\[\\{}]|[{}]")  # an escaped brace closes nothing
_SAID = re.compile(r"\banswer\s*(?:is\b|[:=])\s*:?", re.IGNORECASE)
_EMPHASIS = "*_` \t"
_HEADING = re.compile(r"^#+\s+(?=\S)")
_STOP = re.compile(r"(?<=[*_`])\.$")
_SENTENCE = re.compile(r"(?<=[.!?])\s")
_CLOSED = {r"\]": r"\[", r"\)": r"\(", "$$": "$$"}
"""The end of a formula -> its beginning."""

FORMAT_INSTRUCTIONS = (
    "You are a helpful assistant that solves mathematical problems. First think about the problem step by "
    "step, then give the final answer. Enclose the reasoning in <think> </think> tags and the final answer "
    "in <answer> </answer> tags, and write nothing else: <think>reasoning process</think><answer>final "
    "answer</answer>"
)
"""Asks for the form that the format reward checks with `tags` (paper, section 4)."""

_INSTRUCTIONS = {
    "tags": "Solve the problem step by step, then give the final answer in <answer> </answer> tags.",
    "boxed": r"Solve the problem step by step, and put the final answer within \boxed{}.",
    "final": (
        'Solve the problem step by step, and end with one line that reads "The answer is" and the final '
        "answer."
    ),
    "auto": r"Solve the problem step by step, and put the final answer within \boxed{}.",
}
_INSTRUCTIONS["lenient"] = _INSTRUCTIONS["final"]


_PROGRAM = (
    "Think about the problem step by step, then write one Python program that solves it, in a code block "
    "that starts with ```python and ends with ```."
)
_TAGGED_PROGRAM = (
    "First think about the problem step by step, then write one Python program that solves it. Enclose the "
    "reasoning in <think> </think> tags and the program, as a code block, in <answer> </answer> tags, and "
    "write nothing else: <think>reasoning process</think><answer>```python\nprogram\n```</answer>"
)


def prefill(prompt: str) -> str:
    """The opening of the thought, or an empty thought, that a rendered prompt ends with; empty where it ends
    with none."""
    found = _PREFILL.search(prompt[-200:])
    return found.group() if found else ""


def extract_tags(completion: str) -> str | None:
    """Text of the last complete answer tag, stripped; None where there is none or it is empty."""
    end = completion.rfind("</answer>")
    start = completion.rfind("<answer>", 0, end) if end >= 0 else -1
    if start < 0:
        return None
    return completion[start + len("<answer>") : end].strip() or None


def extract_boxed(completion: str) -> str | None:
    r"""Content of the last `\boxed{…}` that is closed, after the thought; None where there is none or it is
    empty."""
    text = after_thought(completion)
    if text is None:
        return None
    opens = {found.end() - 1 for found in _BOXED.finditer(text)}
    stack: list[int] = []
    last = (0, 0)
    for found in _BRACES.finditer(text):
        if found.group() == "{":
            stack.append(found.start())
        elif found.group() == "}" and stack and (start := stack.pop()) in opens:
            last = start + 1, found.start()
    return text[slice(*last)].strip() or None


def extract_final(completion: str) -> str | None:
    """The text after the last "answer is" or "answer:" on its line, otherwise the last line; after the
    thought and without emphasis. A formula that ends on a line of its own is one line."""
    lines = _lines(after_thought(completion) or "")
    return _said(lines) or (lines[-1] if lines else None)


def extract_lenient(completion: str) -> str | None:
    """As `auto`, and of natural text the last number or expression: of the sentence that says what the answer
    is, otherwise of the last line that has one."""
    given = extract_tags(completion) or extract_boxed(completion)
    if given is not None:
        return last_expression(given) or given
    lines = _lines(after_thought(completion) or "")
    if said := _said(lines):
        return last_expression(_SENTENCE.split(said)[0]) or said
    return next(filter(None, map(last_expression, reversed(lines))), lines[-1] if lines else None)


def _said(lines: list[str]) -> str | None:
    """What the last line with "answer is" says."""
    for line in reversed(lines):
        said = [found.end() for found in _SAID.finditer(line)]
        if said and (answer := _plain(line[said[-1] :])):
            return answer
    return None


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
    """A line without the marks of a heading and of emphasis, also before a full stop: `**72**.` -> `72`."""
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


def after_thought(completion: str) -> str | None:
    """The completion after its thought; None for a thought that is not ended, because it holds no answer
    yet."""
    start, end = completion.rfind("<think>"), completion.rfind("</think>")
    if end > start:
        return completion[end + len("</think>") :]
    return completion if start < 0 else None


def format_reward(completion: str, mode: str = "tags") -> float:
    """1.0 if the completion has the form of `mode`, white space around it aside.

    `tags`: one think part, white space, one answer part and nothing else. Every other mode: no thought, or
    one that begins the completion and is ended; and an answer after it where the mode is one of ours.
    """
    text = completion.strip()
    return float(_tagged(text) if mode == "tags" else _thought_is_whole(text) and _answers(text, mode))


def _tagged(text: str) -> bool:
    if not (text.startswith("<think>") and text.endswith("</answer>")):
        return False
    if any(text.count(tag) != 1 for tag in TAGS):
        return False
    _, end, rest = text.partition("</think>")
    between, start, _ = rest.partition("<answer>")
    return bool(end and start and not between.strip())


def _thought_is_whole(text: str) -> bool:
    counts = text.count("<think>"), text.count("</think>")
    return counts == (0, 0) or (counts == (1, 1) and text.startswith("<think>"))


def _answers(text: str, mode: str) -> bool:
    return mode not in ANSWERS or ANSWERS[mode](text) is not None


def example(mode: str, answer: str, opened: str = "") -> str:
    """A completion with this answer in the form of `mode` (`plain`: the answer alone), after a prompt whose
    template wrote `opened` (see `prefill`)."""
    begun, ended = "<think>" in opened, "</think>" in opened
    thought = "" if ended else "…</think>" if begun else "<think>…</think>"
    if mode == "tags":
        return f"{thought}<answer>{answer}</answer>"
    sentence = f"The answer is {answer}"
    forms = {"plain": answer, "final": sentence, "lenient": sentence}
    said = forms.get(mode, f"\\boxed{{{answer}}}")
    return f"{thought}\n\n{said}" if begun and not ended else said


def example_program(mode: str, block: str, opened: str = "") -> str:
    """A completion with this code block: in the form of `tags`, or after a thought."""
    if mode == "tags":
        return example(mode, block, opened)
    return f"…</think>\n\n{block}" if opened.count("<think>") > opened.count("</think>") else block


def load_extract(name: str) -> Extract:
    """The function of `reward.answer`: one of ours or `package.module:function`. Raises ConfigError."""
    if name in ANSWERS:
        return ANSWERS[name]
    return load_function("reward.answer", name, f"{', '.join(ANSWERS)} or ")


def user_answer(name: str, completion: str) -> str | None:
    """The answer that a user's function finds, checked. Raises ValueError when the function fails or returns
    neither text nor None."""
    extract = load_extract(name)
    with failures_named(f"reward.answer: {name!r}"):
        found = extract(completion)
    if found is not None and not isinstance(found, str):
        raise ValueError(
            f"reward.answer: {name!r} returned {found!r:.60}: it must return text, or None for no answer"
        )
    return found.strip() or None if found else None


def instructions(mode: str, rewards: tuple[str, ...]) -> str | None:
    """The system message that asks for what these rewards check; None without a reward of HORA's, and for a
    user's own way to find answers."""
    if "code_tests" in rewards and "accuracy" not in rewards:
        return _TAGGED_PROGRAM if mode == "tags" and "format" in rewards else _PROGRAM
    if not {"format", "accuracy"} & set(rewards):
        return None
    return FORMAT_INSTRUCTIONS if mode == "tags" and "format" in rewards else _INSTRUCTIONS.get(mode)
