"""An episode is what its function says, or refused by name; a lost one is never a wrong answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest

from hora_rl.actors.environment.conversation import Conversation, Template
from hora_rl.actors.environment.episodes import run_episode
from hora_rl.actors.environment.policy import Policy, SandboxTools
from hora_rl.actors.environment.protocol import Episode, EpisodeOver
from hora_rl.actors.environment.registry import BEGIN, END, guess, load_environment, python_tool, written
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer, make_prompt
from hora_rl.common.data.rows import Row
from hora_rl.common.errors import ConfigError, EnvironmentFault
from hora_rl.common.load import load
from hora_rl.common.types import Completion, Tokens
from tests.support.groups import completion

GUESS = load("tiny-guess")
TOKENIZER = load_tokenizer(GUESS.model.path)
ROW = Row(0, "n=", "5")
RENDER = ("environment.history=render",)
MORE = {"role": "user", "content": "more"}
HISTORY = [{"role": "user", "content": text} for text in ("another", "on")]
ANSWER = {"role": "assistant", "content": "5"}


def said(text: str, version: int = 0) -> Completion:
    return completion(TOKENIZER.encode(text, add_special_tokens=False), text, "length", version)


class Script:
    """A policy that says these texts, one a turn; it remembers what it was asked."""

    def __init__(self, *texts: str, versions: tuple[int, ...] = ()) -> None:
        self._answers = [said(t, v) for t, v in zip(texts, versions or [0] * len(texts), strict=True)]
        self.contexts: list[str] = []
        self.most: list[int] = []
        self.least: list[int] = []

    async def __call__(self, context: Tokens, most: int, version: int) -> Completion:
        self.contexts.append(TOKENIZER.decode(context))
        self.most.append(most)
        self.least.append(version)
        await asyncio.sleep(0)
        return self._answers[len(self.contexts) - 1]


def run(function: Any, script: Any, config: Config = GUESS, row: Row = ROW, tools: Any = None) -> Completion:
    prompt = make_prompt(TOKENIZER, row.index, row, config.data)
    opening = [{"role": "user", "content": row.problem}]
    conversation = Conversation(Template(TOKENIZER, config.data), opening, prompt.tokens)
    policy = Policy(conversation, script, config, 0)
    return asyncio.run(run_episode(function, row, policy, tools))


def limited(**settings: object) -> Config:
    return load("tiny-guess", [f"environment.{k}={v}" for k, v in settings.items()])


def test_a_game_is_an_episode_of_its_guesses() -> None:
    script = Script("1", "6", "5")
    made = run(guess, script)
    assert made.rewards == {"solved": 1.0}
    assert script.contexts == ["n=", "n=1\nhigher\nn=", "n=1\nhigher\nn=6\nlower\nn="]
    assert TOKENIZER.decode(made.tokens) == "165"
    turns = [(t.sampled, TOKENIZER.decode(t.context)) for t in made.turns]
    assert turns == [(1, ""), (1, "\nhigher\nn="), (1, "\nlower\nn=")]
    at_once = run(guess, Script("5"))
    assert (at_once.rewards, at_once.turns) == ({"solved": 1.0}, ()), "as compact as a completion"


@pytest.mark.parametrize("texts", [("1", "2", "3"), ("x", "y", "z")])
def test_a_limit_of_turns_ends_an_episode_and_counts(texts: tuple[str, ...]) -> None:
    made = run(guess, Script(*texts))
    assert (made.rewards, made.finish_reason, len(made.tokens)) == ({"solved": 0.0}, "length", 3)


async def talker(row: Row, policy: Any, sandbox: Any) -> Episode:
    await policy.generate()
    while True:
        await policy.generate(MORE)


@pytest.mark.parametrize(
    ("name", "most", "turns"), [("turns", 2, 2), ("given_tokens", 9, 3), ("turns", 99, 5)]
)
def test_every_limit_ends_an_episode_that_does_not_end_itself(name: str, most: int, turns: int) -> None:
    limits = {"max_turns": 50, "max_turn_tokens": 3, f"max_{name}": most}
    own = [f"environment.{k}={v}" for k, v in limits.items()]
    config = load("tiny-guess", ["rollout.max_response_tokens=5", *own])
    script = Script(*"abcdefgh")
    made = run(talker, script, config)
    assert (len(made.turns), made.finish_reason) == (turns, "length")
    assert made.rewards == {"solved": 0.0}, "a function that lets the limit through earned nothing"
    assert script.most[:2] == [3, 3]
    assert sum(len(t.context) for t in made.turns) <= config.environment.max_given_tokens


def test_later_turns_ask_for_weights_no_older_than_those_before() -> None:
    script = Script("1", "2", "3", versions=(4, 4, 6))
    made = run(guess, script)
    assert script.least == [0, 4, 4]
    assert [(s.version, s.start, s.end) for s in made.spans] == [(4, 0, 2), (6, 2, 3)]


def after_a_turn(then: Callable[[Any], Awaitable[Any]]) -> Any:
    """An environment that returns what comes after the policy's first turn."""

    async def episode(row: Row, policy: Any, sandbox: Any) -> Any:
        await policy.generate()
        return await then(policy)

    return episode


def returns(result: object) -> Any:
    return after_a_turn(lambda policy: asyncio.sleep(0, result))


async def ignores_its_end(row: Row, policy: Any, sandbox: Any) -> Episode:
    await policy.generate()
    for _ in range(3):
        try:
            await asyncio.sleep(0.4)
        except asyncio.CancelledError:
            continue
    return Episode({"solved": 1.0})


async def says_nothing(row: Row, policy: Any, sandbox: Any) -> Episode:
    return Episode({"solved": 1.0})


@pytest.mark.parametrize(
    ("function", "kind", "reason"),
    [
        (after_a_turn(lambda policy: {}["door"]), "raises", "raises KeyError: 'door'"),
        (after_a_turn(lambda policy: asyncio.sleep(60)), "hangs", "0.3 s"),
        (ignores_its_end, "hangs", "0.3 s"),
        (returns(Episode({"speed": 1.0})), "gives", "'solved'.*speed"),
        (returns(Episode({"solved": float("nan")})), "gives", "nan.*'solved'"),
        (returns(Episode({"solved": 10**400})), "gives", "1000.*'solved'"),
        (returns(1.0), "returns", "float"),
        (returns(Episode([1.0])), "returns", r"\[1.0\]"),  # type: ignore[arg-type]
        (says_nothing, "ends", "turn"),
        (after_a_turn(lambda policy: policy.reply(HISTORY)), "changes", "message 0"),
        (after_a_turn(lambda policy: policy.generate(ANSWER)), "changes", "assistant"),
        (after_a_turn(lambda p: asyncio.gather(p.generate(MORE), p.generate(MORE))), "asks", "two turns at"),
    ],
)
def test_what_is_no_episode_is_named_and_no_wrong_answer(function: Any, kind: str, reason: str) -> None:
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match=reason) as fault:
        run(function, Script(*"12345"), limited(time_limit_s=0.3))
    assert fault.value.kind == kind
    assert time.monotonic() - began < 10


def test_time_of_the_policy_and_of_the_sandbox_is_not_the_environments_own() -> None:
    class Slow(Script):
        async def __call__(self, context: Tokens, most: int, version: int) -> Completion:
            await asyncio.sleep(0.5)
            return await super().__call__(context, most, version)

        async def python(self, source: str, stdin: str = "") -> str:
            await asyncio.sleep(0.5)
            return "7"

    async def uses(row: Row, policy: Any, sandbox: Any) -> Episode:
        await policy.generate()
        return Episode({"solved": float(await sandbox.python("print(7)") == "7")})

    slow = Slow("1")
    assert run(uses, slow, limited(time_limit_s=0.4), tools=slow).rewards == {"solved": 1.0}


async def wraps(row: Row, policy: Any, sandbox: Any) -> Episode:
    try:
        await policy.generate()
    except ConnectionError as error:
        raise ValueError("wrapped") from error
    return Episode({"solved": 0.0})


async def hides(row: Row, policy: Any, sandbox: Any, again: int = 1) -> Episode:
    await policy.generate()
    for _ in range(again):
        with suppress(ConnectionError):
            await policy.generate(MORE)
    return Episode({"solved": 1.0})


@pytest.mark.parametrize(
    ("function", "at"), [(guess, 0), (wraps, 0), (hides, 1), (partial(hides, again=2), 1)]
)
def test_a_turn_that_is_lost_is_neither_the_environments_fault_nor_an_episode(function: Any, at: int) -> None:
    """Also where the environment hides it, or asks once more of a replica that is there again."""
    replicas = iter(["there"] * at + ["gone", "there"])

    async def lost(context: Tokens, most: int, version: int) -> Completion:
        if next(replicas) == "gone":
            raise ConnectionError("the replica is gone")
        return said("1")

    with pytest.raises(ConnectionError, match="the replica is gone"):
        run(function, lost)


@pytest.mark.timeout(120)
def test_programs_run_in_the_sandbox_and_what_they_print_is_data() -> None:
    program = "```python\nprint(6 * 7, '<eos>')\n```"
    hostile = "```python\nimport socket\nsocket.socket()\n```"
    loud = "```python\nprint('x' * 5000)\n```"
    script = Script(program, hostile, loud, "42")
    room = ["environment.max_given_tokens=6000", "rollout.max_response_tokens=300"]
    config = load("tiny", ["environment.path=python", *room, "learner.tokens_per_microbatch=8192"])
    with closing(SandboxTools(2)) as tools:
        made = run(python_tool, script, config, Row(0, "6*7=?", "42"), tools)
    heard = [TOKENIZER.decode(turn.context) for turn in made.turns[1:]]
    assert "42 < eos>" in heard[0]
    assert "Error" in heard[1]
    assert "(cut)" in heard[2]
    assert len(heard[2]) < 2_200


def test_an_environment_that_cannot_be_one_is_refused_by_name() -> None:
    for name, reason in (
        ("no_such_module:episode", "no_such_module:episode"),
        ("tests.support.groups:group", "async def"),
        ("asyncio:sleep", "three arguments"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load_environment(name)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["environment.path=chess"], "guess, python"),
        (["environment.max_turns=5000"], r"environment\.max_turns .5000."),
        (["environment.path=null"], r"episode\.solved.*environment\.path"),
        ([*RENDER, "data.chat=true", "learner.objective.loss=gspo"], "gspo"),
        ([*RENDER, "data.chat=false"], r"environment\.history .render.*data\.chat"),
        (["environment.max_given_tokens=9000"], "max_given_tokens.* 9011"),
    ],
)
def test_settings_that_no_environment_can_have_are_refused(settings: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load("tiny-guess", settings)


def test_an_environment_may_catch_its_limit_and_give_partial_credit() -> None:
    async def half(row: Row, policy: Any, sandbox: Any) -> Episode:
        try:
            await talker(row, policy, sandbox)
        except EpisodeOver:
            return Episode({"solved": 0.25})
        raise AssertionError

    made = run(half, Script(*"abc"))
    assert (made.rewards, made.finish_reason) == ({"solved": 0.25}, "length")


def test_a_turn_of_thousands_of_digits_is_no_number() -> None:
    room = ("environment.max_given_tokens=100", "learner.tokens_per_microbatch=20000")
    config = load("tiny-guess", ["rollout.max_response_tokens=9000", *room])
    assert run(guess, Script("9" * 5000, "5"), config).rewards == {"solved": 1.0}


def test_a_block_that_never_closes_is_read_in_linear_time() -> None:
    began = time.monotonic()
    assert written(BEGIN + "``\n" * 200_000) is None
    assert time.monotonic() - began < 1.0
    assert written(f"a{BEGIN}1+1{END}{END}") == "1+1"
