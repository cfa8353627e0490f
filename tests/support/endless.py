"""Completions that are surely still running when something happens to them."""

from typing import Any

import pytest

N = 64  # sequences of 400 tokens each are decoded for seconds, even by the smallest model


def never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on an engine's completions end at their limit of tokens alone. The demo's model answers a
    prompt that it does not understand within three tokens, which is over before a call reaches the engine."""
    from vllm import SamplingParams

    from hora_rl.actors.generator import vllm_engine

    def endless(**settings: Any) -> SamplingParams:
        return SamplingParams(**{**settings, "stop_token_ids": [], "ignore_eos": True})

    monkeypatch.setattr(vllm_engine, "SamplingParams", endless)
