"""The table of sequences in flight that the replica puts in the place of vLLM's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hora_rl.actors.generator.timeline import Sequences


@dataclass
class Ended:
    """What the table reads of vLLM's `RequestState`."""

    external_req_id: str
    request_index: int
    stats: str | None


def sequence(request: str, index: int, stats: str | None) -> Any:
    return Ended(request, index, stats)


def test_each_sequence_of_a_request_leaves_its_record() -> None:
    table = Sequences({})
    with table.ended("a") as of_a, table.ended("b") as of_b:
        for name, state in {
            "0_a": sequence("a", 0, "first"),
            "1_a": sequence("a", 1, "second"),
            "0_b": sequence("b", 0, "third"),
        }.items():
            table[name] = state
        assert table.pop("1_a").request_index == 1
        table.pop("0_b")
        table.pop("0_a", None)
        assert table.pop("0_a", None) is None
        assert of_a == {0: "first", 1: "second"}
        assert of_b == {0: "third"}


def test_a_sequence_that_ends_after_its_request_leaves_nothing() -> None:
    """vLLM aborts the sequences of a stream that its reader left in a task of their own, and a request that
    is cancelled while its sequences are added leaves the first ones running."""
    table = Sequences({"0_a": sequence("a", 0, "first"), "x": sequence("served", 0, "second")})
    with table.ended("a"):
        pass
    table.pop("0_a")
    table.pop("x")
    assert not table
    assert not table._ended
