"""Rewards of one completion: format, accuracy, a user's own, and their weighted sum (paper, section 4).

`format`    1.0 where the whole completion is one <think>…</think> and one <answer>…</answer>, else 0.0.
`accuracy`  1.0 where the text of the answer tag equals the gold answer, else 0.0. The default success.

Everything here is quick and safe on hostile text except `math_equal`, which asks math-verify: that one may run
for ever or take all memory (`9**9**9`), so only the killable processes of `actors.verifier.pool` call it on a
model's answers.
"""

from __future__ import annotations

import importlib
import logging
import math
import re
from collections.abc import Callable, Mapping

from common.config import Reward

UserReward = Callable[[str, str, str], float]
"""A user's reward: (prompt text, completion, gold answer) -> one finite float. Named `package.module:function`."""

MAX_NESTING = 40
"""Deepest nesting of brackets that is parsed. The deepest gold answer of the four benchmarks has 2."""

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(?:\.(\d*))?")
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}\\]*[A-Za-z][^{}\\]*)\}")
_LISTED = re.compile(r",(?:\s|~|\\[,;: ])")  # a comma with room after it; `10,\!080` draws its parts together
_SPACING = re.compile(r"\\[,;:! ]|~|(?<!\d) | (?!\d)")
_LEAD = re.compile(
    r"(?:\\displaystyle\b|(?:the\s+)?(?:final\s+)?answer\s*(?:is\b|[:=])\s*:?)\s*", re.IGNORECASE
)
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_BASE = re.compile(r"[0-9A-Fa-f]+_\{?(\d+)\}?")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_BOXED = "\\boxed{"


def format_reward(completion: str) -> float:
    """1.0 if the completion is one think part, white space, one answer part and nothing else. Linear time."""
    if not (completion.startswith("<think>") and completion.endswith("</answer>")):
        return 0.0
    if any(completion.count(tag) != 1 for tag in _TAGS):
        return 0.0
    _, end, rest = completion.partition("</think>")
    between, start, _ = rest.partition("<answer>")
    return 1.0 if end and start and not between.strip() else 0.0


def extract_answer(completion: str) -> str | None:
    """Text of the last complete answer tag, stripped; None where there is none or it is empty."""
    end = completion.rfind("</answer>")
    start = completion.rfind("<answer>", 0, end) if end >= 0 else -1
    if start < 0:
        return None
    return completion[start + len("<answer>") : end].strip() or None


def usable_gold(answer: str) -> bool:
    """Whether accuracy can be judged against this gold answer: it parses and equals itself.

    Meant for a data set's own answers, which are trusted to be finite work; a model's answers are not.
    """
    if not bounded(answer, max_chars=2000):
        return False
    if canonical_number(answer) is not None or canonical_words(answer) is not None:
        return True
    return any(not isinstance(part, str) for part in _parse(answer)) and math_equal(answer, answer)


def gold_test(reward: Reward) -> Callable[[str], bool] | None:
    """What decides whether a row's gold answer can be used with these rewards; None where accuracy is not computed: then
    any answer can."""
    return usable_gold if "accuracy" in reward.names else None


def bounded(text: str, max_chars: int) -> bool:
    """Whether a text is short and shallow enough to be parsed at all."""
    if not text or len(text) > max_chars:
        return False
    depth = 0
    for char in text:
        if char in "([{":
            depth += 1
            if depth > MAX_NESTING:
                return False
        elif char in ")]}":
            depth -= 1
    return True


def bare(text: str) -> str:
    r"""The answer without what people put around it: white space, a full stop, `$…$`, `\(…\)`, `\boxed{…}`,
    "The answer is"."""
    before = None
    while text != before:
        before = text
        text = text.strip()
        if lead := _LEAD.match(text):
            text = text[lead.end() :]
        if text.endswith(".") and not text.endswith(r"\."):
            text = text[:-1].rstrip()
        for opening, closing in _DELIMITERS:
            inner = text[len(opening) : -len(closing)]
            if text.startswith(opening) and text.endswith(closing) and opening not in inner and inner:
                text = inner
        if text.startswith(_BOXED) and _closing(text, len(_BOXED) - 1) == len(text) - 1:
            text = text[len(_BOXED) : -1]
    return text


def _closing(text: str, start: int) -> int:
    """Index of the brace that closes the one at `start`; -1 where none does."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
    return -1


def _tight(text: str) -> str:
    """Without spacing, except between two digits: `2 1/2` is not `21/2`."""
    return _SPACING.sub("", " ".join(text.split()))


def canonical_number(text: str) -> str | None:
    """`1,234.50` -> `1234.5`, `-0` -> `0`; None where the text is not a plain integer or decimal.

    None also for `3, 103`, which is a list, and for `2e-3`: there `e` may be Euler's number.
    """
    text = bare(text)
    found = None if _LISTED.search(text) else _NUMBER.fullmatch(_tight(text))
    if not found:
        return None
    sign, whole, decimals = found.group(1), found.group(2), found.group(3) or ""
    whole = whole.replace(",", "").lstrip("0") or "0"
    decimals = decimals.rstrip("0")
    value = f"{whole}.{decimals}" if decimals else whole
    return f"-{value}" if sign == "-" and value != "0" else value


def canonical_words(text: str) -> str | None:
    r"""`\text{Evelyn}` -> `evelyn`; None where the text is not one piece of words in a text command."""
    found = _WORDS.fullmatch(bare(text))
    return _plain_words(found.group(1)) if found else None


def _plain_words(text: str) -> str:
    return " ".join(text.lower().strip("() ").split())


def quick_verdict(gold: str, answer: str) -> bool | None:
    """Right or wrong where that is plain from the text; None where math-verify must decide.

    Plain: equal text but for spacing; two numbers without operators; words against words; numerals of two bases.
    """
    # Of the texts with their spacing, which tells a list from a number.
    numbers = canonical_number(gold), canonical_number(answer)
    gold, answer = _tight(bare(gold)), _tight(bare(answer))
    if gold == answer:
        return True
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0] == numbers[1]
    words = canonical_words(gold)
    if words is not None and len(words) > 1:
        return words == (canonical_words(answer) or _plain_words(answer))
    # math-verify drops the base: 204_6 would equal 204_5. An answer may leave out the gold answer's base.
    if (base := _BASE.fullmatch(answer)) and base.group(1) != _base_of(gold):
        return False
    return None


def _base_of(gold: str) -> str:
    found = _BASE.fullmatch(gold)
    return found.group(1) if found else "10"


def math_equal(gold: str, answer: str) -> bool:
    """math-verify's judgement. Unbounded in time and memory: call it in a process that can be killed.

    math-verify's own time limits use signals, which work in a main thread only: they are off.
    """
    return _equal(gold, answer) and all(_equal(gold, side) for side in _values(gold, answer))


def _equal(gold: str, answer: str) -> bool:
    from math_verify import verify

    return bool(verify(_parse(gold), _parse(answer), timeout_seconds=None))


def _values(gold: str, answer: str) -> list[str]:
    """The sides without letters of an answer that is an equation while the gold answer is none. math-verify
    looks at the last side alone, so that `27 = 28` would be right for 28."""
    sides = answer.split("=") if "=" not in gold else []
    return [side for side in sides[:-1] if side.strip() and not re.search("[A-Za-z]", _COMMAND.sub("", side))]


def _parse(text: str) -> list:
    """The text as one mathematical expression. Not a search for one: an answer that lists several guesses is
    the list of them, and equals only a gold answer that is that list."""
    from math_verify import parse

    for name in ("math_verify.parser", "math_verify.grader"):  # they announce that their time limits are off
        logging.getLogger(name).setLevel(logging.ERROR)
    return parse(_BOXED + bare(text) + "}", parsing_timeout=None)


def total(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Weighted sum of the rewards that have a weight. Raises ValueError naming a reward that is missing."""
    missing = [name for name in weights if name not in rewards]
    if missing:
        raise ValueError(
            f"reward {missing[0]!r} has a weight but was not computed (there are: {sorted(rewards)})"
        )
    return math.fsum(weight * rewards[name] for name, weight in weights.items())


def load_reward(name: str) -> UserReward:
    """The function that `package.module:function` names. Raises ValueError saying what is wrong with it."""
    module, _, function = name.partition(":")
    try:
        reward = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"reward: cannot load {name!r}: {error}; write package.module:function") from error
    if not callable(reward):
        raise ValueError(f"reward: {name!r} is a {type(reward).__name__}, not a function")
    return reward


def user_reward(name: str, problem: str, completion: str, gold: str) -> float:
    """Value of a user's reward, checked. Raises ValueError where it is not one finite number."""
    value = load_reward(name)(problem, completion, gold)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"reward {name!r} returned {value!r}: it must return one finite number")
    return float(value)
