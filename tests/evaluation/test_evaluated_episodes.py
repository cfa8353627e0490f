"""A run with an environment is evaluated in episodes: Pass@K counts what the environment calls a success, and
the samples are the same however they are cut into requests."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from hora_rl.actors.coordinator.calls import verifier_calls
from hora_rl.actors.coordinator.sampling import Generate
from hora_rl.actors.environment.episodes import Episodes
from hora_rl.actors.environment.guess import guess
from hora_rl.common.data.datasets import Row
from hora_rl.common.data.prompts import load_tokenizer, make_prompt
from hora_rl.common.load import load
from hora_rl.common.types import Completion, SamplingRequest, VersionSpan
from hora_rl.evaluation.evaluate import Counts, evaluate

GUESS = load("tiny-guess")
TOKENIZER = load_tokenizer(GUESS.model.path)
PROBLEMS = [make_prompt(TOKENIZER, n, Row(n, "n=", str(n)), GUESS.data) for n in range(7)]
SAMPLES = 8


class NoVerifier:
    """A handle that nobody may call: the environment says what an episode earned."""

    def options(self, **_: str) -> Any:
        return self


def turns(version: int, episode: str) -> Generate:
    """Digits, decided by the seed of the turn."""

    async def generate(request: SamplingRequest) -> list[Completion]:
        await asyncio.sleep(0)
        text = str(random.Random(request.seed).randrange(7))
        tokens = np.asarray(TOKENIZER.encode(text, add_special_tokens=False), np.int32)
        spans = (VersionSpan(version, 0, 1),)
        return [Completion(text, tokens, np.full(1, -0.5, np.float32), "length", spans)]

    return generate


def evaluated(out: Path, size: int) -> tuple[Counts, list[dict[str, Any]]]:
    """The counts, and the samples by problem and number."""
    played = Episodes(GUESS, TOKENIZER, guess, None, lambda name, amount: None)  # type: ignore[arg-type]

    async def episodes(request: SamplingRequest) -> list[Completion]:
        made = await played.make(request, 3, turns)
        assert isinstance(made, list), made
        return made

    score = verifier_calls(NoVerifier(), GUESS)  # type: ignore[arg-type]
    about = {"benchmark": "numbers"}
    counts = asyncio.run(
        evaluate(PROBLEMS, episodes, score, SAMPLES, out, about=about, samples_per_request=size)
    )
    _, *samples = map(json.loads, out.read_text().splitlines())
    return counts, sorted(
        ({k: v for k, v in s.items() if k != "seed"} for s in samples),
        key=lambda s: (s["problem"], s["sample"]),
    )


def test_successes_of_episodes_are_counted_and_no_cut_changes_them(tmp_path: Path) -> None:
    counts, samples = evaluated(tmp_path / "whole.jsonl", SAMPLES)
    assert counts.correct.tolist() == [
        sum(s["success"] for s in samples if s["problem"] == n) for n in range(7)
    ]
    assert 0 < counts.correct.sum() < 7 * SAMPLES
    assert {s["length"] for s in samples} == {1, 2, 3}
    assert counts.tokens.sum() == sum(s["length"] for s in samples)
    assert all(s["success"] == (s["rewards"] == {"episode.solved": 1.0}) for s in samples)
    assert counts.versions == (3, 3)
    assert evaluated(tmp_path / "cut.jsonl", 3)[1] == samples
