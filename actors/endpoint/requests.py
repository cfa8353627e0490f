"""Checks the fields of a request. Pure: takes the client's JSON object, returns the one for vLLM.

Fields that are not listed here are refused, not ignored, so that no client believes they had an effect.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hora_rl.common.config import Serve
from hora_rl.common.types import BELOW_TRAINING

Kind = Literal["chat", "completion"]
MOST_LOGPROBS = 5
MOST_STOPS = 16
MOST_MESSAGES = 1_024
MOST_TOOLS = 64
LONGEST_STOP = 256
DEEPEST = 16

SAMPLING = {
    *("model", "user", "n", "seed", "max_tokens", "min_tokens", "stop", "stop_token_ids"),
    *("temperature", "top_p", "top_k", "min_p", "logprobs", "stream", "stream_options"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "return_token_ids"),
}
FIELDS: dict[Kind, set[str]] = {
    "chat": SAMPLING | {"messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice"},
    "completion": SAMPLING | {"prompt"},
}
RANGES = {
    "max_tokens": (1, 2**31),
    "max_completion_tokens": (1, 2**31),
    "min_tokens": (0, 2**31),
    "logprobs": (0, MOST_LOGPROBS),
    "top_logprobs": (0, MOST_LOGPROBS),
    "top_k": (-1, 2**31),
    "seed": (-(2**63), 2**63 - 1),
}
VERSION = "min_weight_version"
"""The field that HORA adds: the oldest weight version that may serve the request."""


class Refused(Exception):
    """A refused request: the reason, and the field that caused it, if there is one."""

    def __init__(self, reason: str, field: str | None = None) -> None:
        super().__init__(reason)
        self.field = field


@dataclass(frozen=True, slots=True)
class Asked:
    """`body` goes to vLLM; `version` is the oldest weight version that may serve the request."""

    body: dict[str, object]
    version: int


def _is_text(value: object) -> bool:
    """Whether UTF-8 can encode `value`: JSON allows lone surrogates (`"\\ud800"`), UTF-8 does not."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def checked(raw: object, kind: Kind, limits: Serve, stops: Sequence[int | str], request_id: str) -> Asked:
    """The checked request. `stops` are the tokens and texts that end a completion of this run. Raises
    Refused."""
    if not isinstance(raw, dict):
        raise Refused(f"the body must be a JSON object, not {type(raw).__name__}")
    body = {name: value for name, value in raw.items() if name != VERSION and value is not None}
    for name in body:
        if name not in FIELDS[kind]:
            raise Refused(f"field {name!r:.60} is not served here", name[:60])
        if not _is_text(body[name]):
            raise Refused(
                f"{name} holds a lone surrogate, which is no character, or is nested too deeply", name
            )
    _numbers(body)
    # A replica never has more places, and would let the client wait and try again for ever.
    n = _whole(body.get("n", 1), "n", 1, min(limits.max_samples, limits.max_sequences))
    prompts = 1 if kind == "chat" else _prompts(body.get("prompt"))
    if n * prompts > limits.max_samples:
        raise Refused(
            f"n = {n} for {prompts} prompts asks for more than {limits.max_samples} completions", "n"
        )
    if kind == "chat":
        _messages(body)
    ids, texts = _stops(body)
    own = {
        "stop_token_ids": [*(i for i in stops if isinstance(i, int)), *ids],
        "stop": [*(text for text in stops if isinstance(text, str)), *texts],
        "priority": BELOW_TRAINING,  # vLLM lets clients choose
        "request_id": request_id,
    }
    return Asked(body | own, _whole(raw.get(VERSION) or 0, VERSION, 0, 2**53))


def _numbers(body: dict[str, object]) -> None:
    for name, (low, high) in RANGES.items():
        if name in body and not (name == "logprobs" and isinstance(body[name], bool)):
            _whole(body[name], name, low, high)
    for name in ("stream", "return_token_ids"):
        if not isinstance(body.get(name, False), bool):
            raise Refused(f"{name} must be true or false", name)


def _prompts(prompt: object) -> int:
    """The number of prompts. `prompt` is a text, a list of tokens, or a list of either."""
    if isinstance(prompt, str):
        return 1
    if isinstance(prompt, list) and prompt:
        if _tokens(prompt):
            return 1
        if _are(str, prompt) or all(isinstance(p, list) and p and _tokens(p) for p in prompt):
            return len(prompt)
    raise Refused("prompt must be a text, a list of token ids, or a list of either", "prompt")


def _tokens(values: list[object]) -> bool:
    return all(type(value) is int and 0 <= value < 2**31 for value in values)


def _are(kind: type, values: list[object]) -> bool:
    return all(type(value) is kind for value in values)


def _messages(body: dict[str, object]) -> None:
    messages, tools = body.get("messages"), body.get("tools", [])
    if not isinstance(messages, list) or not 1 <= len(messages) <= MOST_MESSAGES:
        raise Refused(f"messages must be 1 to {MOST_MESSAGES} messages", "messages")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise Refused(f"messages.{number} must be an object with a role", "messages")
        _content(message.get("content"), number)
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS or _deeper(tools, DEEPEST):
        raise Refused(f"tools must be at most {MOST_TOOLS} tools, nested {DEEPEST} deep", "tools")
    if body.get("tool_choice", "none") not in ("none", "auto"):
        raise Refused("tool_choice must be none or auto: no call is forced or parsed here", "tool_choice")
    if tools:
        # The chat template shows the tools. A tool call is returned as plain text.
        body["tool_choice"] = "none"


def _content(content: object, number: int) -> None:
    """Accept text content only: other kinds may contain a URL that the server would fetch."""
    parts = content if isinstance(content, list) else []
    texts = all(
        isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in parts
    )
    if not texts or not (content is None or isinstance(content, str | list)):
        raise Refused(f"messages.{number}.content must be text", "messages")


def _stops(body: dict[str, object]) -> tuple[list[int], list[str]]:
    stop, ids = body.get("stop", []), body.get("stop_token_ids", [])
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not _are(str, texts) or len(texts) > MOST_STOPS:
        raise Refused(f"stop must be at most {MOST_STOPS} texts", "stop")
    if any(not 0 < len(text) <= LONGEST_STOP for text in texts):
        raise Refused(f"a text of stop must have 1 to {LONGEST_STOP} characters", "stop")
    if not isinstance(ids, list) or not _are(int, ids) or len(ids) > MOST_STOPS:
        raise Refused(f"stop_token_ids must be at most {MOST_STOPS} token ids", "stop_token_ids")
    return [_whole(i, "stop_token_ids", 0, 2**31) for i in ids], texts


def _whole(value: object, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise Refused(f"{name} must be a whole number from {low} to {high}", name)
    return value


def _deeper(value: object, depth: int) -> bool:
    """Whether lists and objects in `value` are nested more than `depth` deep."""
    children = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return depth == 0 or any(_deeper(child, depth - 1) for child in children)
