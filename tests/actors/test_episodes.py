"""Episodes are sampled again where their environment made none; whoever dies, none is lost or doubled."""

import asyncio
import gc
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hora_rl.actors.coordinator.calls import retry
from hora_rl.actors.environment.deployment import watchdog
from hora_rl.actors.environment.episodes import Episodes
from hora_rl.actors.environment.protocol import Episode
from hora_rl.actors.environment.registry import guess
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer, make_prompt
from hora_rl.common.data.rows import Row
from hora_rl.common.errors import RunError
from hora_rl.common.load import from_args, load
from hora_rl.common.types import Completion, Failed, Prompt, SamplingRequest, Scored
from tests.support.coordination import config_of, with_deaths
from tests.support.groups import completion

GUESS = load("tiny-guess")
TOKENIZER = load_tokenizer(GUESS.model.path)
ROW = Row(0, "n=", "5")
RENDERED = {"path": "guess", "history": "render", "max_turns": 3, "max_given_tokens": 200}


def digit(seed: int, version: int = 0) -> Completion:
    """A turn that says a digit, decided by its seed."""
    text = str(random.Random(seed).randrange(7))
    return completion(TOKENIZER.encode(text, add_special_tokens=False), text, "length", version)


class Turns:
    """Single turns at some version; remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[SamplingRequest] = []
        self.episodes: Counter[str] = Counter()

    def __call__(self, version: int, episode: str) -> Callable[[SamplingRequest], Any]:
        async def generate(request: SamplingRequest) -> list[Completion]:
            self.asked.append(request)
            self.episodes[episode] += 1
            await asyncio.sleep(0)
            return [digit(request.seed, version)]

        return generate


async def made(
    function: Any, turns: Any, n: int = 4, seed: int = 11, **settings: object
) -> tuple[Any, Counter[str]]:
    config = load("tiny-guess", [f"environment.{k}={v}" for k, v in settings.items()])
    counts: Counter[str] = Counter()
    episodes = Episodes(config, TOKENIZER, function, None, lambda k, v: counts.update({k: v}))  # type: ignore[arg-type]
    prompt = make_prompt(TOKENIZER, 0, ROW, config.data)
    found = await episodes.make(SamplingRequest(prompt, n, seed=seed, priority=3), 0, turns)
    assert episodes.running == 0
    return found, counts


async def test_each_turn_of_each_episode_has_a_seed_and_a_limit_of_its_own() -> None:
    turns = Turns()
    found, counts = await made(guess, turns)
    assert len(found) == 4
    assert len({r.seed for r in turns.asked}) == len(turns.asked) == counts["episode_turns"]
    assert sorted(turns.episodes.values()) == sorted(len(m.turns) or 1 for m in found)
    assert {(r.n, r.priority, r.max_tokens) for r in turns.asked} == {(1, 3, 1)}
    again, _ = await made(guess, Turns())
    assert [c.tokens.tolist() for c in found] == [c.tokens.tolist() for c in again], "a retry draws the same"


async def test_an_episode_is_the_same_however_episodes_are_cut_into_requests() -> None:
    whole, _ = await made(guess, Turns(), n=4, seed=11)
    parts = [c for n, seed in ((3, 11), (1, 14)) for c in (await made(guess, Turns(), n=n, seed=seed))[0]]
    assert [c.tokens.tolist() for c in whole] == [c.tokens.tolist() for c in parts]
    assert len({tuple(c.tokens.tolist()) for c in whole}) > 1


async def test_an_episode_that_fails_is_sampled_again_and_its_siblings_are_kept() -> None:
    calls = 0

    async def fails_once(row: Row, policy: Any, sandbox: Any) -> Episode:
        nonlocal calls
        calls += 1
        mine = calls
        await policy.generate()
        if mine == 2:
            raise KeyError("door")
        return Episode({"solved": 1.0})

    turns = Turns()
    found, counts = await made(fails_once, turns)
    assert [c.rewards for c in found] == [{"solved": 1.0}] * 4
    assert calls == 5
    assert counts == {"episodes": 4, "episodes_cut": 0, "episode_turns": 4, "episodes_lost:raises": 1}
    assert len({r.seed for r in turns.asked}) == 5, "the second try draws anew"


async def test_after_all_tries_the_reason_is_one_line_and_no_answer() -> None:
    async def fails(row: Row, policy: Any, sandbox: Any) -> Episode:
        await policy.generate()
        raise KeyError("door")

    found, counts = await made(fails, Turns())
    assert found == Failed(
        "environment guess made no episode of prompt 0 (problem 'n=') in 5 tries; "
        "last: the environment raises KeyError: 'door'"
    )
    assert counts["episodes"] == 0


async def test_an_environment_that_awaits_what_it_cancelled_has_failed() -> None:
    async def cancels(row: Row, policy: Any, sandbox: Any) -> Episode:
        await policy.generate()
        hint = asyncio.ensure_future(asyncio.sleep(60))
        hint.cancel()
        await hint
        return Episode({"solved": 1.0})

    found, counts = await made(cancels, Turns())
    assert isinstance(found, Failed)
    assert "in 5 tries; last: the environment raises CancelledError" in found.reason
    assert counts["episodes_lost:raises"] >= 2


@pytest.mark.parametrize("moment", range(5))
async def test_a_turn_lost_in_the_moment_its_episode_is_cancelled_leaves_no_unread_error(moment: int) -> None:
    loop, unread = asyncio.get_running_loop(), list[Any]()
    gone: asyncio.Future[list[Completion]] = loop.create_future()
    loop.set_exception_handler(lambda _, context: unread.append(context))

    async def turn(request: SamplingRequest) -> list[Completion]:
        return await gone

    making = asyncio.create_task(made(guess, lambda version, episode: turn, n=1))
    await asyncio.sleep(0.05)
    gone.set_exception(ConnectionError("the replica is gone"))
    for _ in range(moment):
        await asyncio.sleep(0)
    making.cancel()
    await asyncio.wait([making])
    del making
    gc.collect()
    assert not unread


def failing(error: Exception) -> Any:
    async def generate(request: SamplingRequest) -> list[Completion]:
        raise error

    return lambda version, episode: generate


async def test_what_stops_the_policy_for_good_stops_the_episodes() -> None:
    turns = failing(RunError("generating failed 20 times"))
    assert (await made(guess, turns))[0] == Failed("generating failed 20 times")


def playing(config: Config, chance: random.Random, counts: Counter[str]) -> Any:
    """Environments in place of generators: each turn may be lost with its replica, each episode may fail."""

    async def play(row: Row, policy: Any, sandbox: Any) -> Episode:
        if chance.random() < 0.1:
            raise KeyError("no such room")
        return await guess(replace(row, answer=str(row.index % 7)), policy, sandbox)

    def turns(least: int, episode: str) -> Any:
        async def generate(single: SamplingRequest) -> list[Completion]:
            await asyncio.sleep(chance.random() * 0.005)
            if chance.random() < 0.02:
                raise ConnectionError("the replica is gone")
            return [digit(single.seed, least)]

        return generate

    episodes = Episodes(config, TOKENIZER, play, None, lambda k, v: counts.update({k: v}))  # type: ignore[arg-type]

    async def fleet(request: SamplingRequest, version: int) -> Any:
        found = await retry(lambda _: episodes.make(request, version, turns), "episodes", 50, 30.0)
        assert not isinstance(found, Failed)
        return found

    return fleet


async def scored(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
    solved = [c.rewards["solved"] for c in completions]
    return [Scored({"episode.solved": value}, value == 1.0) for value in solved]


EPISODES = {
    "environment.path": "guess",
    "environment.max_turns": 3,
    "environment.max_turn_tokens": 1,
    "data.chat": "false",
    "reward.weights": "{episode.solved: 1.0}",
    "reward.success": "episode.solved",
}


@pytest.mark.parametrize("staleness", [0, 1])
async def test_every_episode_is_trained_once_whoever_dies_when(
    redis_url: str, staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hora_rl.actors.environment.episodes.ATTEMPTS", 20)
    chance, counts = random.Random(staleness), Counter[str]()
    config = config_of(f"episodes-{staleness}", staleness, **EPISODES)
    fleet = playing(config, chance, counts)
    payloads = await with_deaths(config, redis_url, chance, monkeypatch, scoring=scored, fleet=fleet)
    rollouts = [r for g in payloads.values() for r in g.rollouts]
    assert any(len(r.turns) == 3 for r in rollouts)
    assert any(not r.turns for r in rollouts)
    for r in rollouts:
        assert r.success == (r.rewards["episode.solved"] == 1.0)
        assert r.success or r.finish_reason == "length"
    assert counts["episodes_lost:raises"] > 0, "lost ones were sampled again, not counted as wrong"


async def test_an_environment_that_blocks_its_replica_is_found_by_file_and_line() -> None:
    found: list[str] = []

    def blocks() -> None:
        while not found:
            time.sleep(0.01)

    with watchdog(0.2, found.append):
        await asyncio.sleep(0.6)
        assert not found, "a loop that turns is no blocked one"
        blocks()
    assert re.fullmatch(r".*test_episodes\.py:\d+ in blocks", found[0])


async def test_an_episode_is_one_of_its_prompts_source(tmp_path: Path) -> None:
    """Its later contexts have the source's system message and template, and it earns the source's rewards."""
    (tmp_path / "rows.jsonl").write_text('{"problem": "n=", "answer": "5"}\n')
    rows: dict[str, Any] = {"path": str(tmp_path / "rows.jsonl")}
    solved: dict[str, Any] = {"weights": {"episode.solved": 1.0}, "success": "episode.solved"}
    sources = {"first": {**rows, "system": "guess", "template": "now {problem}", "reward": solved}}
    sources |= {"second": {**rows, "system": None, "reward": solved}}
    base = load("tiny-guess").model_dump(exclude_unset=True)
    base.pop("reward")
    config = from_args({**base, "data": {"sources": sources}, "environment": RENDERED})
    contexts: list[str] = []

    async def inside(source: str) -> list[Completion]:
        async def generate(request: SamplingRequest) -> list[Completion]:
            contexts.append(TOKENIZER.decode(request.prompt.tokens))
            return [digit(request.seed)]

        episodes = Episodes(config, TOKENIZER, two_turns, None, lambda *_: None)  # type: ignore[arg-type]
        prompt = make_prompt(TOKENIZER, 0, ROW, config.of(source).data, source)
        made = await episodes.make(SamplingRequest(prompt, 1, seed=1, priority=0), 0, lambda *_: generate)
        assert not isinstance(made, Failed), made
        return made

    for source, given in (("first", "now n="), ("second", "n=")):
        contexts.clear()
        [done] = await inside(source)
        assert done.rewards == {"solved": 1.0}
        assert len(contexts) == 2
        assert all(given in c and ("guess" in c) == (source == "first") for c in contexts), contexts


async def two_turns(row: Row, policy: Any, sandbox: Any) -> Episode:
    await policy.generate()
    await policy.generate({"role": "user", "content": "again"})
    return Episode({"solved": 1.0})
