"""Prompts that ask for throws of a die, and who throws and judges them in the place of a model."""

import asyncio
import random
from collections.abc import Sequence

import numpy as np

from hora_rl.common.types import Completion, Prompt, SamplingRequest, Scored, VersionSpan

ABOUT = {"model": "dice", "temperature": 1.0}


def prompts(n: int) -> list[Prompt]:
    return [Prompt(i, f"roll {i}", str(i), np.array([i], np.int32)) for i in range(n)]


class Dice:
    """Sample j depends on seed + j alone, as vLLM's does; prompt i is right in i mod 7 of 6 throws."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.asked: list[tuple[int, int]] = []
        self.waiting = self.most_waiting = 0
        self._fail_after = fail_after

    async def generate(self, request: SamplingRequest) -> list[Completion]:
        if self._fail_after is not None and len(self.asked) >= self._fail_after:
            raise ConnectionError("the generator is gone")
        self.asked.append((request.prompt.index, request.n))
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        await asyncio.sleep(0.001)
        self.waiting -= 1
        return [self._throw(request.prompt.index, request.seed + j) for j in range(request.n)]

    def _throw(self, prompt: int, seed: int) -> Completion:
        face = random.Random(seed).randrange(6)
        text, n = "right" if face < prompt % 7 else "wrong", face + 1
        tokens, logprobs = np.arange(n, dtype=np.int32), np.zeros(n, np.float32)
        return Completion(text, tokens, logprobs, "stop", (VersionSpan(3, 0, n),))


async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
    right = [c.text == "right" for c in completions]
    return [Scored({"accuracy": float(r), "format": 1.0}, r) for r in right]
