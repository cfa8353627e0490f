"""Calls that travel together: what is in a bundle, whose its answers and errors are, and when it is
cancelled."""

import asyncio
from collections.abc import Sequence

import pytest

from hora_rl.actors.bundles import Bundled


class Sent:
    """Answers n by 10·n, and remembers its calls. A call waits until `go` is set."""

    def __init__(self, fails: frozenset[int] = frozenset()) -> None:
        self.calls: list[list[int]] = []
        self.cancelled: list[list[int]] = []
        self.go = asyncio.Event()
        self._fails = fails

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.calls.append(list(items))
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(list(items))
            raise
        if self._fails & set(items):
            raise ConnectionError(f"lost {items}")
        return [10 * item for item in items]


async def test_calls_of_one_moment_travel_together_and_each_gets_its_own_answer() -> None:
    sent = Sent()
    sent.go.set()
    ask = Bundled(sent, lambda n: n, most=6)
    assert await asyncio.gather(*(ask(n) for n in (3, 2, 1, 5, 9, 1))) == [30, 20, 10, 50, 90, 10]
    assert sent.calls == [[3, 2, 1], [5], [9], [1]]
    assert await ask(4) == 40
    assert sent.calls[4:] == [[4]], "a later one does not wait for company"


async def test_the_error_of_a_bundle_is_each_of_its_callers_and_nobody_elses() -> None:
    sent = Sent(fails=frozenset({2}))
    sent.go.set()
    ask = Bundled(sent, lambda n: 1, most=2)
    found = await asyncio.gather(*(ask(n) for n in (1, 2, 3, 4)), return_exceptions=True)
    assert [str(f) for f in found] == ["lost [1, 2]", "lost [1, 2]", "30", "40"]


async def test_a_bundle_goes_on_for_those_who_still_wait_and_is_cancelled_when_nobody_does() -> None:
    sent = Sent()
    ask = Bundled(sent, lambda n: 1, most=2)
    one, two, three, four = tasks = [asyncio.create_task(ask(n)) for n in (1, 2, 3, 4)]
    while len(sent.calls) < 2:
        await asyncio.sleep(0)
    for task in (one, three, four):
        task.cancel()
    await asyncio.wait([one, three, four])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sent.cancelled == [[3, 4]]
    sent.go.set()
    assert await two == 20
    assert [t.cancelled() for t in tasks] == [True, False, True, True]


async def test_a_call_that_answers_for_too_few_is_an_error_and_leaves_nobody_waiting() -> None:
    async def short(items: Sequence[int]) -> list[int]:
        return [0]

    ask = Bundled(short, lambda n: 1, most=2)
    with pytest.raises(RuntimeError, match="a call for 2 items was answered for 1"):
        await asyncio.wait_for(asyncio.gather(ask(1), ask(2)), 5)
