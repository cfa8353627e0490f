"""What a replica notes of its requests: when their sequences ended, and whether they get tokens."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from hora_rl.actors.generator.failures import Progress
from hora_rl.actors.generator.timeline import Sequences


def sequence(request: str, index: int, stats: str | None) -> Any:
    """What the table reads of vLLM's `RequestState`."""
    return SimpleNamespace(external_req_id=request, request_index=index, stats=stats)


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


def test_only_open_requests_without_a_token_count() -> None:
    clock = SimpleNamespace(now=100.0)
    progress = Progress(lambda: clock.now)
    clock.now += 500
    assert progress.still_s == 0.0, "idle"
    with suppress(ConnectionError), progress.request():
        assert progress.still_s == 0.0, "the idle time before it does not count"
        clock.now += 3
        assert progress.still_s == 3.0
        with progress.request():
            assert progress.still_s == 3.0, "another request is no progress"
            clock.now += 1
            progress.moved()
            clock.now += 2
            assert progress.still_s == 2.0
        assert progress.still_s == 2.0
        raise ConnectionError
    clock.now += 9
    assert progress.still_s == 0.0
