"""Stand-ins for what samples and judges, for tests of what is tried through the endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi.responses import JSONResponse, Response

from actors.endpoint.guard import problem
from common.load import load
from common.prompts import load_tokenizer
from common.types import Completion, Prompt, Scored

SAYS = "<think>7+8=15</think><answer>95</answer>"
NEWEST = 1000
CONFIG = load("tiny")
TOKENIZER = load_tokenizer(CONFIG.model.path)


async def complete(body: dict[str, Any]) -> Response:
    """`SAYS`, in weights of versions 3 and 4, as /v1/completions answers."""
    if body["min_weight_version"] >= NEWEST:
        return JSONResponse(problem(503, "no such weights yet"), 503)
    said = TOKENIZER.encode(SAYS, add_special_tokens=False)
    choice = {
        "text": SAYS,
        "finish_reason": "stop",
        "token_ids": said,
        "logprobs": {"token_logprobs": [-0.1] * len(said)},
    }
    spans = [{"version": 3, "start": 0, "end": 4}, {"version": 4, "start": 4, "end": len(said)}]
    return JSONResponse({"choices": [choice], "weight_versions": [spans]})


async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
    right = [float(f"<answer>{prompt.answer}</answer>" in c.text) for c in completions]
    return [Scored({"format": 1.0, "accuracy": r}, r == 1.0) for r in right]
