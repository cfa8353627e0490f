"""A real vLLM engine: a hung one is noticed, and a completion ends with its turn."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hora_rl.actors.verifier.answers import format_reward
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.errors import UnhealthyError
from hora_rl.common.load import load
from hora_rl.common.processes import KEEP_FREED_MEMORY
from hora_rl.common.types import Tokens
from tests.support.chat_model import TURN_END, chat_tokenizer, save_chat_model
from tests.support.engines import N, engine_of, never_end

pytestmark = [pytest.mark.system, pytest.mark.core, pytest.mark.timeout(240)]
CONFIG = load("tiny", ["rollout.max_response_tokens=400"])


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[Any]:
    async with engine_of(CONFIG, "a1b2") as found:
        await found.label(3)
        yield found


@pytest.fixture
def prompt() -> Tokens:
    return render(load_tokenizer(CONFIG.model.path), "57+68=?", CONFIG.data)


async def test_every_completion_says_where_and_when_it_was_sampled(engine: Any, prompt: Tokens) -> None:
    assert engine.load.prefix_queries, "what the first token prepares is done"
    [logger] = engine._llm.logger_manager.stat_loggers
    assert logger.per_engine_stat_loggers[0] is engine.load, "no other counts the tokens"
    assert not Path(os.environ["VLLM_RPC_BASE_PATH"]).exists(), "a kill would leave its sockets"
    # The engine's own title overwrites its environment; what it was started with its tracker has too.
    environments = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.ZombieProcess):
            environments.append(process.environ())
    assert any(KEEP_FREED_MEMORY.items() <= found.items() for found in environments)
    began = time.time()
    whole = await engine.generate(prompt, 8, seed=1, temperature=2.0)  # of many lengths
    for completion in whole:
        origin = completion.origin
        assert origin.replica == "a1b2"
        assert began - 0.1 <= origin.queued <= origin.first_token <= origin.done <= time.time() + 0.1
        assert [(v.version, v.start) for v in completion.spans] == [(3, 0)]
    shortest, *_, longest = sorted(whole, key=lambda c: len(c.tokens))
    assert len(shortest.tokens) < len(longest.tokens) - 8
    assert shortest.origin.done < longest.origin.done, "each has its own times"
    for j in (0, 5):
        (alone,) = await engine.generate(prompt, 1, seed=1 + j, temperature=2.0)
        assert alone.tokens.tolist() == whole[j].tokens.tolist()
        assert alone.logprobs == pytest.approx(whole[j].logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("stops", "stays"),
    [
        (["=1"], ""),
        (["5,"], ""),
        (["</think><ans"], "</think>"),
        (["</answer>x", "k><answer>1"], "k><answer>"),
        (["is never said"], ""),
    ],
)
async def test_a_text_of_several_tokens_ends_a_completion_to_the_character(
    engine: Any, prompt: Tokens, stops: list[str], stays: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the same samples without the stop, whose tokens and log-probs it leaves as they are."""
    tokenizer = load_tokenizer(CONFIG.model.path)
    ended = 0
    for seed in range(6):
        monkeypatch.setattr(engine, "_stop_texts", [])
        (whole,) = await engine.generate(prompt, 1, seed=seed, temperature=1.0)
        monkeypatch.setattr(engine, "_stop_texts", stops)
        (found,) = await engine.generate(prompt, 1, seed=seed, temperature=1.0)
        texts = [tokenizer.decode(whole.tokens[: n + 1]) for n in range(len(whole.tokens))]
        kept = next((n + 1 for n, said in enumerate(texts) if any(stop in said for stop in stops)), None)
        assert found.tokens.tolist() == whole.tokens[:kept].tolist()
        assert found.logprobs.tolist() == whole.logprobs[:kept].tolist(), "not a bit is changed"
        assert found.spans[-1].end == len(found.tokens)
        if kept is None:
            assert (found.text, found.finish_reason) == (whole.text, whole.finish_reason)
            continue
        ended += 1
        stop = next(stop for stop in stops if stop in texts[kept - 1])
        assert found.finish_reason == "stop"
        assert found.text == texts[kept - 1].partition(stop)[0] + stays
    assert ended == 0 if stops == ["is never said"] else ended


async def test_a_truncated_distribution_leaves_the_likely_tokens_alone(engine: Any, prompt: Tokens) -> None:
    one, other = await engine.generate(prompt, 2, seed=5, temperature=1.5, truncation={"top_k": 1})
    assert one.tokens.tolist() == other.tokens.tolist()
    for truncation in ({"top_p": 1e-6}, {"min_p": 1.0}):
        (found,) = await engine.generate(prompt, 1, seed=7, temperature=1.5, truncation=truncation)
        assert found.tokens.tolist() == one.tokens.tolist()
    free = await engine.generate(prompt, 2, seed=5, temperature=1.5)
    assert free[0].tokens.tolist() != free[1].tokens.tolist()


async def test_an_engine_that_gets_no_tokens_is_hung_unless_it_is_paused_for_weights(
    engine: Any, prompt: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hora_rl.actors.generator import vllm_engine as module

    await engine.generate(prompt, 8, seed=1, temperature=1.0)
    monkeypatch.setattr(module, "STILL_S", 1.0)
    await asyncio.sleep(1.5)
    await engine.check_health()  # idle
    never_end(monkeypatch)
    answer = asyncio.create_task(engine.generate(prompt, N, seed=1, temperature=1.0))
    while not engine.load.running:
        await asyncio.sleep(0)
    await engine.pause()
    await asyncio.sleep(1.5)
    await engine.check_health()
    engine.paused_since = None  # as if it had stopped by itself
    with pytest.raises(UnhealthyError):
        await engine.check_health()
    await engine.resume()
    assert {c.finish_reason for c in await answer} == {"length"}
    await engine.check_health()


async def test_a_call_that_is_cancelled_leaves_no_sequence_running(
    engine: Any, prompt: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await engine.generate(prompt, 2, seed=1, temperature=1.0)
    never_end(monkeypatch)
    answer = asyncio.create_task(engine.generate(prompt, N, seed=1, temperature=1.0))
    while engine.load.running < N:
        await asyncio.sleep(0)
    answer.cancel()
    await asyncio.wait([answer])
    assert answer.cancelled()
    monkeypatch.undo()
    again = await engine.generate(prompt, 2, seed=1, temperature=1.0)
    assert [c.tokens.tolist() for c in again] == [c.tokens.tolist() for c in kept]
    assert engine.load.running + engine.load.waiting <= 2, "the sequences of the call ended with it"


@pytest.mark.slow
async def test_every_number_of_sequences_does_not_take_memory_of_its_own() -> None:
    """oneDNN compiles a matrix product for each number of rows."""
    config = load("tiny", ["rollout.max_response_tokens=2"])
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)
    async with engine_of(config) as engine:
        core = next(p for p in psutil.Process().children(recursive=True) if "VLLM::" in p.name())
        before = 0.0
        for n in range(1, 225):
            await engine.generate(prompt, n, seed=n, temperature=1.0)
            if n == 32:
                before = core.memory_info().rss
        grown = (core.memory_info().rss - before) / 2**20
    assert grown < 200, f"{grown:.0f} MiB for 192 numbers of sequences"


async def test_a_base_model_ends_with_its_turn_and_gets_its_format_reward(tmp_path: Path) -> None:
    says = "<think>1+1</think>\n<answer>2</answer>"
    limits = {"max_prompt_tokens": 700, "max_response_tokens": 128}
    model = {"path": str(tmp_path), "dtype": "float32"}
    config = Config.model_validate({"model": model, "data": {"path": "d.jsonl"}, "rollout": limits})
    tokenizer = chat_tokenizer()
    prompt = render(tokenizer, "1+1=?", config.data)
    save_chat_model(tmp_path, tokenizer, prompt.tolist(), says)
    async with engine_of(config) as engine:
        completions = await engine.generate(prompt, 2, seed=1, temperature=0.01)
    for found in completions:
        assert (found.text, found.finish_reason) == (says, "stop")
        assert found.tokens[-1] == tokenizer.convert_tokens_to_ids(TURN_END), "the end is trained too"
        assert format_reward(found.text) == 1.0
