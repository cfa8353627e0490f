"""The answers of recall tasks: how one is written, read and rewarded. Imported by verifiers: no torch."""

TAGGED = "<think></think><answer>{}</answer>"
"""The form of a completion, with {} in place of the answer."""
ANY = "…"
"""A form that begins with it allows any text before; the last place that fits the rest is read."""


def answer_of(text: str, form: str = TAGGED) -> str | None:
    """The answer of a completion of this form, else None."""
    start, end = form.split("{}")
    if start.startswith(ANY):
        text, start = text[max(text.rfind(start[1:]), 0) :], start[1:]
    is_of_form = text.startswith(start) and text.endswith(end)
    return text[len(start) : len(text) - len(end)] if is_of_form else None


def is_right(text: str, gold: str, form: str = TAGGED) -> bool:
    """Whether the answer of a completion is one of the right ones, which `gold` joins by |."""
    return answer_of(text, form) in gold.split("|")


def one_of(prompt: str, text: str, gold: str) -> float:
    """Reward: 1.0 where a tagged answer is right."""
    return float(is_right(text, gold))
