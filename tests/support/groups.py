"""Rollouts, completions and groups of a test's choosing: what a test does not name has a plain default. And
groups in a run's real queue, and what its Redis holds of them."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hora_rl.common.config import Config
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.queue import Producer
from hora_rl.common.live.redis import connect_async
from hora_rl.common.types import Completion, FinishReason, Group, Phase, Rollout, Turn, VersionSpan

Numbers = Sequence[int] | np.ndarray


def rollout(
    tokens: Numbers = (1, 1, 1),
    *,
    logprobs: Sequence[float] | np.ndarray | float = -1.0,
    finish_reason: FinishReason = "stop",
    version: int = 0,
    spans: Sequence[VersionSpan] | None = None,
    phase: Phase = "A",
    success: bool = True,
    rewards: dict[str, float] | None = None,
    turns: Sequence[Turn] = (),
) -> Rollout:
    """A rollout of these sampled tokens (L,), all by `version` unless `spans` says otherwise. One number as
    `logprobs` holds for every token. `rewards`: by default `accuracy` as `success` says, and
    `format` 1."""
    ids = np.asarray(tokens, np.int32)
    return Rollout(
        tokens=ids,
        logprobs=np.array(np.broadcast_to(np.asarray(logprobs, np.float32), ids.shape)),
        finish_reason=finish_reason,
        spans=(VersionSpan(version, 0, len(ids)),) if spans is None else tuple(spans),
        phase=phase,
        rewards={"accuracy": float(success), "format": 1.0} if rewards is None else rewards,
        success=success,
        turns=tuple(turns),
    )


def completion(
    tokens: Numbers = (1,), text: str = "x", finish_reason: FinishReason = "stop", version: int = 0
) -> Completion:
    """A completion of these tokens (L,), each with log-prob -1."""
    ids = np.asarray(tokens, np.int32)
    spans = (VersionSpan(version, 0, len(ids)),)
    return Completion(text, ids, np.full(len(ids), -1.0, np.float32), finish_reason, spans)


def group(
    index: int = 0, rollouts: Sequence[Rollout] | None = None, *, prompt: Numbers = (1, 1), **fields: Any
) -> Group:
    """The group of prompt `index`, with these `fields`; by default one successful rollout of each phase."""
    plain: dict[str, Any] = {"run": "r", "epoch": 0, "batch": 0, "shard": 0, "rule": "uniform"}
    plain |= {"prior": (1.0, 1.0), "tokenizer": "t", "pre_rollouts": 1}
    plain["prompt_tokens"] = np.asarray(prompt, np.int32)
    own = (rollout(), rollout(phase="B")) if rollouts is None else tuple(rollouts)
    return Group(prompt_index=index, rollouts=own, **(plain | fields))


def in_turns(made: Rollout, rng: np.random.Generator, anew: float, vocabulary: int) -> Rollout:
    """The rollout cut into up to four turns, with tokens given between them; `anew` is the chance of a turn
    to have a context of its own."""
    n = len(made.tokens)
    cuts = sorted(set(rng.integers(1, n, 3).tolist())) if n > 1 else []
    if not cuts:
        return made
    turns = [Turn(cuts[0], np.zeros(0, np.int32))]
    for start, end in zip(cuts, [*cuts[1:], n], strict=True):
        of_its_own = bool(rng.random() < anew)
        given = rng.integers(0, vocabulary, int(rng.integers(of_its_own, 6))).astype(np.int32)
        turns.append(Turn(end - start, given, of_its_own))
    return replace(made, turns=tuple(turns))


def fill(config: Config, server: Any, groups: Iterable[Group]) -> None:
    """Push these groups on the Redis `server`, as a coordinator does it."""

    async def push() -> None:
        async with connect_async(server.url) as client:
            for group in groups:
                await Producer(client, config.run.name, config.rollout.prompts_per_batch).push(group)

    asyncio.run(push())


def rollouts_held(client: Any, run: str) -> set[str]:
    """The names, without the run's prefix, of all keys of a run that hold rollouts."""
    keys = Keys(run)
    patterns = [keys.pre_rollouts("*"), keys.additional("*"), keys.drawn("*", 0).removesuffix("0") + "*"]
    found = [k.decode() for p in patterns for k in client.scan_iter(p.replace("{", "\\{"))]
    return {key.removeprefix(f"hora:{{{run}}}:") for key in found}
