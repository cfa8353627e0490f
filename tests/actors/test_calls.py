"""The one retry policy: what counts as a failed try, and what goes through. Calls that travel together: what
is in a bundle, whose its answers and errors are, and when it is cancelled."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from ray.serve.handle import DeploymentResponse

from hora_rl.actors.concurrency import cancel
from hora_rl.actors.coordinator import calls
from hora_rl.actors.coordinator.batched_calls import BatchedCalls
from hora_rl.actors.coordinator.calls import retry
from hora_rl.common.errors import AwayTooLong, MissingWeights, NoRoom, RunError, StaleWeights


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "LONGEST_PAUSE_S", 0.0)


async def asked(*answers: str | BaseException, attempts: int = 2, patient: bool = False) -> str:
    """`retry` of a replica with these answers, one after the other; an exception is raised."""
    left = list(answers)

    async def ask(before: int) -> str:
        assert before == len(answers) - len(left), "so that a retry goes elsewhere"
        answer = left.pop(0)
        if isinstance(answer, str):
            return answer
        raise answer

    return await retry(ask, "generating", attempts, limit_s=1.0, patient=patient)


async def test_a_request_is_asked_again_whatever_it_was_lost_to_a_cancelled_replica_too() -> None:
    lost = (ConnectionError("gone"), TimeoutError(), asyncio.CancelledError())
    assert await asked(*lost, "answer", attempts=4) == "answer"


async def test_a_full_replica_is_no_failed_try_nor_are_weights_that_somebody_sends() -> None:
    assert await asked(*[NoRoom("64 requests")] * 9, "answer", attempts=1) == "answer"
    assert await asked(*[StaleWeights("holds 10")] * 9, "answer", attempts=1, patient=True) == "answer"


@pytest.mark.parametrize(
    ("error", "n", "attempts", "raised"),
    [
        (ConnectionError("gone"), 1100, 1100, RunError),  # for hours
        (StaleWeights("holds 10, needs 19"), 9, 20, MissingWeights),  # that nobody sends
        (AwayTooLong("reward 'judge' was unavailable"), 1, 20, RunError),
    ],
)
async def test_the_last_try_says_what_it_was_for(
    error: Exception, n: int, attempts: int, raised: type[Exception]
) -> None:
    with pytest.raises(raised, match=f"generating failed.*{type(error).__name__}: {error}"):
        await asked(*[error] * n, "answer", attempts=attempts)


async def test_our_own_cancellation_goes_through_at_once_and_a_try_has_a_deadline() -> None:
    tries = 0

    async def ask(before: int) -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(60)

    task = asyncio.create_task(retry(ask, "generating", attempts=9, limit_s=60.0))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tries == 1
    with pytest.raises(RunError, match="failed 2 times; last: TimeoutError"):
        await retry(ask, "generating", attempts=2, limit_s=0.01)


class Request(DeploymentResponse[Any]):
    """One of Serve's, without Serve: nobody answers it."""

    def __init__(self) -> None:
        self.ended = False

    def __await__(self) -> Any:
        return asyncio.sleep(60).__await__()

    def cancel(self) -> None:
        self.ended = True


async def test_a_replica_stops_work_for_which_nobody_waits_any_more() -> None:
    requests: list[Request] = []

    def ask(before: int) -> Request:
        requests.append(Request())
        return requests[-1]

    with pytest.raises(RunError, match="failed 2 times; last: TimeoutError"):
        await retry(ask, "generating", 2, limit_s=0.05)
    asking = asyncio.create_task(retry(ask, "generating", 2, limit_s=60.0))
    await asyncio.sleep(0.01)
    await cancel([asking])
    assert [request.ended for request in requests] == [True] * 3


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
    ask = BatchedCalls(sent, lambda n: n, most=6)
    assert await asyncio.gather(*(ask(n) for n in (3, 2, 1, 5, 9, 1))) == [30, 20, 10, 50, 90, 10]
    assert sent.calls == [[3, 2, 1], [5], [9], [1]]
    assert await ask(4) == 40
    assert sent.calls[4:] == [[4]], "a later one does not wait for company"


async def test_the_error_of_a_bundle_is_each_of_its_callers_and_nobody_elses() -> None:
    sent = Sent(fails=frozenset({2}))
    sent.go.set()
    ask = BatchedCalls(sent, lambda n: 1, most=2)
    found = await asyncio.gather(*(ask(n) for n in (1, 2, 3, 4)), return_exceptions=True)
    assert [str(f) for f in found] == ["lost [1, 2]", "lost [1, 2]", "30", "40"]


async def test_a_bundle_goes_on_for_those_who_still_wait_and_is_cancelled_when_nobody_does() -> None:
    sent = Sent()
    ask = BatchedCalls(sent, lambda n: 1, most=2)
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

    ask = BatchedCalls(short, lambda n: 1, most=2)
    with pytest.raises(RuntimeError, match="a call for 2 items was answered for 1"):
        await asyncio.wait_for(asyncio.gather(ask(1), ask(2)), 5)
