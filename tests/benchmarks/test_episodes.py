"""Two thousand episodes of five turns in flight: every token and turn arrives, and a turn costs its replica
little."""

import asyncio

import pytest

from benchmarks.episodes import configuration, play

pytestmark = pytest.mark.system
EPISODES, TURNS, TOKENS = 2_000, 5, 20
MOST_S = 0.01
"""Processor time of a turn on any machine. On two busy cores it is a fortieth of this."""


def test_two_thousand_episodes_of_five_turns_are_in_flight_at_once() -> None:
    config = configuration(TURNS, TOKENS)
    spent = asyncio.run(play(config, EPISODES, TURNS, TOKENS, turn_s=0.5))  # asserts tokens and turns
    print(f"{1e3 * spent / (EPISODES * TURNS):.2f} ms of processor time a turn")
    assert spent < EPISODES * TURNS * MOST_S
