"""The form of a completion: the marks of thought and answer, and the instructions that ask for them.

A template may write the opening mark at the end of the prompt (Qwen3's thinking models, R1). `prefill` finds
it, and completions are judged with it in front. Every family's marks count in every completion: no model
writes those of another. All functions take linear time, also on hostile text."""

import re

TAGS = ("<answer>", "</answer>")
MODES = ("tags", "boxed", "final", "auto", "lenient")
"""Built-in places of an answer (`reward.answer`); `actors/verifier/answers.py` finds it."""
MARKS = (
    # Qwen3, DeepSeek-R1, SmolLM3, GLM-4.5, OLMo 3, Phi-4-reasoning, Granite, LFM2, Nemotron, MiniMax-M2
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),  # Magistral, Ministral 3
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<mm:think>", "</mm:think>"),  # MiniMax-M3
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    # gpt-oss: the head of the final channel ends the thought, as `<|end|><|start|>assistant` are left out
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("◁think▷", "◁/think▷"),  # Kimi-VL
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker, Sky-T1
    ("<Thought>", "</Thought>"),  # Marco-o1
    ("<longcat_think>", "</longcat_think>"),  # LongCat-Flash-Thinking
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<unused94>thought", "<unused95>"),  # MedGemma 1.5
    ("[unused16]", "[unused17]"),  # Pangu
    ("<thinking>", "</thinking>"),  # prompted for, as the next
    ("<reasoning>", "</reasoning>"),
)
"""Opening and closing mark of each."""
OPENING, CLOSING = MARKS[0]
"""Those that prompts and examples ask for."""
FINAL = "<|channel|>final<|message|>"
"""gpt-oss writes it before every answer, also without a thought."""
_PREFILL = re.compile(
    "|".join(rf"{re.escape(opening)}\s*(?:{re.escape(closing)}\s*)?\Z" for opening, closing in MARKS)
)

FORMAT_INSTRUCTIONS = (
    "You are a helpful assistant that solves mathematical problems. First think about the problem step by "
    "step, then give the final answer. Enclose the reasoning in <think> </think> tags and the final answer "
    "in <answer> </answer> tags, and write nothing else: <think>reasoning process</think><answer>final "
    "answer</answer>"
)
"""Asks for the format that the format reward checks with `tags` (paper, section 4)."""

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
    """The opening of a thought, or an empty thought, at the end of a rendered prompt; empty if none."""
    match = _PREFILL.search(prompt[-200:])
    return match.group() if match else ""


def unclosed(opened: str) -> str:
    """The mark that closes the thought in `opened` (see `prefill`); empty if there is none to close."""
    return next((c for o, c in MARKS if o in opened and c not in opened), "")


def after_thought(completion: str) -> str | None:
    """The completion after its thought; None if the thought is not closed."""
    rest = 0
    for opening, closing in MARKS:
        start, end = completion.rfind(opening), completion.rfind(closing)
        if start > end:
            return None
        rest = max(rest, end + len(closing) if end >= 0 else 0)
    return completion[rest:]


def whole_thought(completion: str) -> bool | None:
    """Whether a completion without white space around it begins with one closed thought and has no other
    mark; None if it has no mark at all."""
    completion = completion.removeprefix(FINAL)
    counts = {marks: (completion.count(marks[0]), completion.count(marks[1])) for marks in MARKS}
    present = [marks for marks, count in counts.items() if count != (0, 0)]
    if not present:
        return None
    return len(present) == 1 and counts[present[0]] == (1, 1) and completion.startswith(present[0][0])


def has_channels(text: str) -> bool:
    """Whether a thought or an answer in `text` is marked by control tokens, as Gemma 4's and gpt-oss' are."""
    return any(mark in text for marks in MARKS for mark in marks if "|" in mark)


def is_mark(token: str) -> bool:
    """Whether a special token is part of a mark, and so of the completion's text."""
    return len(token) > 2 and any(token in mark for marks in MARKS for mark in marks)


def instructions(mode: str, rewards: tuple[str, ...]) -> str | None:
    """The system message that asks for the format these rewards check; None if none of them needs one."""
    if "code_tests" in rewards and "accuracy" not in rewards:
        return _TAGGED_PROGRAM if mode == "tags" and "format" in rewards else _PROGRAM
    if not {"format", "accuracy"} & set(rewards):
        return None
    return FORMAT_INSTRUCTIONS if mode == "tags" and "format" in rewards else _INSTRUCTIONS.get(mode)
