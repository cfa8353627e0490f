"""One problem tried on the newest weights, as the run would: its template, its sampling, its rewards."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from actors.coordinator.sampling import Score
from actors.endpoint.guard import problem
from actors.endpoint.requests import VERSION, Refused
from common.config import Config
from common.datasets import Row, gold_answer
from common.errors import ConfigError, HoraError
from common.prompts import make_prompt
from common.rewards import group_functions, total
from common.stop_tokens import completed, silent_tokens
from common.types import Completion, FinishReason, Prompt
from common.user_code import is_user_function

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIELDS = {"problem", "answer", VERSION}
Complete = Callable[[dict[str, object]], Awaitable[Response]]
"""Answers the body of a request for completions."""


class Trial:
    """`complete` samples as the endpoint does, and `score` judges as the run's verifiers do."""

    def __init__(
        self, config: Config, tokenizer: PreTrainedTokenizerBase, complete: Complete, score: Score
    ) -> None:
        self._source = config.source_names[0]
        self._config = config.of(self._source)
        self._tokenizer, self._silent = tokenizer, silent_tokens(tokenizer)
        self._complete, self._score = complete, score

    async def answer(self, raw: object) -> Response:
        """A completion of `problem` with its tokens, versions and, where `answer` is given, its rewards."""
        try:
            prompt = self._prompt(raw)
        except Refused as error:
            return _refusal(error)
        assert isinstance(raw, dict)
        rollout = self._config.rollout
        asked = {
            "prompt": prompt.tokens.tolist(),
            "max_tokens": rollout.max_response_tokens,
            "temperature": rollout.temperature,
            "logprobs": 0,
            "return_token_ids": True,
            VERSION: raw.get(VERSION, 0),
        }
        response = await self._complete(asked)
        if response.status_code != 200:
            return response
        found = json.loads(bytes(response.body))
        choice, (spans,) = found["choices"][0], found["weight_versions"]
        tokens, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        # vLLM's text lacks every token that ended the completion, also a tag of rollout.stop.
        text = completed(self._tokenizer, self._silent, tokens, choice["finish_reason"])
        completion = _completion(text, tokens, logprobs, choice["finish_reason"])
        rewards, note = await self._judged(prompt, completion, raw)
        return JSONResponse(
            {
                "prompt": self._tokenizer.decode(prompt.tokens),
                "text": text,
                "finish_reason": choice["finish_reason"],
                "tokens": [
                    {"id": t, "text": self._tokenizer.decode([t]), "logprob": p}
                    for t, p in zip(tokens, logprobs, strict=True)
                ],
                "weight_versions": spans,
                "source": self._source,
                **rewards,
                "note": note,
            }
        )

    def _prompt(self, raw: object) -> Prompt:
        """Raises Refused with status 400."""
        if not isinstance(raw, dict) or not isinstance(raw.get("problem"), str) or not raw["problem"].strip():
            raise Refused(400, "the body must be a JSON object with a text `problem`", "problem")
        if other := set(raw) - FIELDS:
            raise Refused(400, f"field {min(map(str, other))!r:.60} is not served here")
        try:
            answer = gold_answer(raw.get("answer"))
            data = self._config.data
            row = Row(
                0, raw["problem"], answer, {data.prompt_field: raw["problem"], data.answer_field: answer}
            )
            prompt = make_prompt(self._tokenizer, 0, row, self._config.data, self._source)
        except (ConfigError, ValueError) as error:
            raise Refused(400, " ".join(str(error).split())[:300]) from None
        most = self._config.rollout.max_prompt_tokens
        if len(prompt.tokens) > most:
            raise Refused(
                400, f"the prompt has {len(prompt.tokens)} tokens, and rollout.max_prompt_tokens is {most}"
            )
        return prompt

    async def _judged(
        self, prompt: Prompt, completion: Completion, raw: dict[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """Rewards and success, and why there are none."""
        try:
            if (reason := self._unjudged(raw.get("answer"))) is not None:
                return {}, f"no reward: {reason}"
            (scored,) = await self._score(prompt, [completion])
        except HoraError as error:
            return {}, f"no reward: {error}"
        reward = total(scored.rewards, self._config.reward.weights)
        return {"rewards": scored.rewards, "reward": reward, "success": scored.success}, ""

    def _unjudged(self, answer: object) -> str | None:
        """Why this is not enough for the run's rewards. A reward of the user's own gets a row with the
        columns of problem and answer alone. Raises ConfigError where one cannot be loaded."""
        reward, environment = self._config.reward, self._config.environment.path
        if environment is not None:
            return f"rollouts of this run are episodes of {environment}, and this is one turn"
        if "code_tests" in reward.names:
            return "code_tests needs a row of the data"
        if groups := group_functions(self._config):
            return f"{groups[0]} compares the completions of a group, and this is one"
        if answer is None and not all(map(is_user_function, reward.names)):
            return "it takes the right answer"
        return None


def add_trial(app: FastAPI, trial: Trial) -> None:
    """POST /try: {"problem": text, "answer": JSON, "min_weight_version": number}."""

    @app.post("/try")
    async def try_(request: Request) -> Response:
        try:
            raw = json.loads(await request.body())
        except (ValueError, RecursionError):
            return _refusal(Refused(400, "the body is not JSON"))
        return await trial.answer(raw)


def _refusal(error: Refused) -> Response:
    return JSONResponse(problem(error.status, str(error), error.field), error.status)


def _completion(text: str, tokens: list[int], logprobs: list[float], finish_reason: str) -> Completion:
    reason: FinishReason = "length" if finish_reason == "length" else "stop"
    kept, likely = np.asarray(tokens, np.int32), np.asarray(logprobs, np.float32)
    return Completion(text, kept, likely, reason, ())
