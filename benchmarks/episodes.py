"""What an environment replica spends on a turn: many episodes in flight, with timers in place of the policy.

    python -m benchmarks.episodes [--episodes 2000] [--turns 5] [--tokens 200]

Conversation, template, limits and runner are real, the tokenizer is the demo's. Processor time of the whole
loop over all turns is the cost of a turn in one replica; Serve's calls come on top.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import numpy as np

from actors.environment.conversation import Conversation
from actors.environment.episode_runner import run_episode
from actors.environment.policy import Policy
from actors.environment.protocol import Episode, Speaker, Tools
from actors.environment.template import Template
from common.config import Config
from common.datasets import Row
from common.load import load
from common.prompts import load_tokenizer, make_prompt, opening
from common.types import Completion, Tokens, VersionSpan

SAY = {"role": "user", "content": "The tool printed 42. What do you conclude from it, and what is next?"}


def configuration(turns: int, tokens: int) -> Config:
    return load(
        "tiny",
        [
            "environment.path=calculator",
            f"environment.max_turns={turns}",
            f"environment.max_given_tokens={200 * turns}",
            f"rollout.max_response_tokens={turns * tokens}",
            f"learner.tokens_per_microbatch={400 * turns + turns * tokens}",
        ],
    )


async def play(config: Config, episodes: int, turns: int, tokens: int, turn_s: float) -> float:
    """Processor seconds of `episodes` episodes side by side."""
    tokenizer = load_tokenizer(config.model.path)
    template, row = Template(tokenizer), Row(0, "37+58=?", "95")
    prompt = make_prompt(tokenizer, 0, row, config.data)
    ids = np.random.default_rng(0).integers(6, 262, tokens, dtype=np.int32)
    answer = Completion(
        "x" * tokens, ids, np.full(tokens, -0.5, np.float32), "stop", (VersionSpan(0, 0, tokens),)
    )

    async def sample(context: Tokens, most: int, version: int) -> Completion:
        await asyncio.sleep(turn_s)
        return answer

    async def talk(row: Row, policy: Speaker, sandbox: Tools) -> Episode:
        await policy.generate()
        for _ in range(turns - 1):
            await policy.generate(SAY)
        return Episode({})

    class NoTools:
        async def python(self, source: str, stdin: str = "") -> str:
            return ""

    async def one() -> Completion:
        conversation = Conversation(template, opening(row.problem, config.data), prompt.tokens)
        policy = Policy(conversation, sample, config, 0)
        return await run_episode(talk, row, conversation, policy, NoTools(), config)

    before = time.process_time()
    made = await asyncio.gather(*(one() for _ in range(episodes)))
    spent = time.process_time() - before
    assert all(len(m.tokens) == turns * tokens and len(m.turns) == turns for m in made)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of an environment replica for each turn.")
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200, help="of each turn")
    parser.add_argument("--turn-s", type=float, default=2.0, help="that the policy takes for a turn")
    options = parser.parse_args()
    config = configuration(options.turns, options.tokens)
    began = time.monotonic()
    spent = asyncio.run(play(config, options.episodes, options.turns, options.tokens, options.turn_s))
    count = options.episodes * options.turns
    print(
        f"{options.episodes} episodes of {options.turns} turns of {options.tokens} tokens in flight: "
        f"{time.monotonic() - began:.1f} s, {1e3 * spent / count:.2f} ms of processor time a turn"
    )


if __name__ == "__main__":
    main()
