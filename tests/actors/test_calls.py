"""The one retry policy: what counts as a failed try, and what goes through."""

import asyncio
from collections.abc import Sequence

import pytest

from hora_rl.actors.coordinator import calls
from hora_rl.actors.coordinator.calls import retry
from hora_rl.common.errors import AwayTooLong, NoRoom, PinLost, RunError, StaleWeights


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "LONGEST_PAUSE_S", 0.0)


class Replica:
    """Answers with these, one after the other; an exception is raised."""

    def __init__(self, answers: Sequence[str | BaseException]) -> None:
        self._answers = list(answers)

    async def ask(self, before: int) -> str:
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            return answer
        raise answer


def test_a_request_is_asked_again_whatever_it_was_lost_to_a_cancelled_replica_too() -> None:
    replica = Replica([ConnectionError("gone"), TimeoutError(), asyncio.CancelledError(), "answer"])
    assert asyncio.run(retry(replica.ask, "generating", attempts=4, limit_s=1.0)) == "answer"


def test_a_request_says_how_often_it_was_asked_before_so_that_it_goes_elsewhere() -> None:
    told: list[int] = []

    async def ask(before: int) -> None:
        told.append(before)
        if before < 3:
            raise StaleWeights("this replica will never hold them")

    asyncio.run(retry(ask, "generating", attempts=2, limit_s=1.0, patient=True))
    assert told == [0, 1, 2, 3]


def test_the_last_try_says_what_it_was_for() -> None:
    replica = Replica([ConnectionError("gone")] * 3)
    with pytest.raises(RunError, match="generating failed 3 times; last: ConnectionError: gone"):
        asyncio.run(retry(replica.ask, "generating", attempts=3, limit_s=1.0))


def test_weights_that_are_not_there_yet_are_waited_for_only_where_somebody_sends_them() -> None:
    stale = [StaleWeights("holds 10, needs 19")] * 9
    answer = retry(Replica([*stale, "answer"]).ask, "generating", attempts=2, limit_s=1.0, patient=True)
    assert asyncio.run(answer) == "answer"
    with pytest.raises(RunError, match="failed 2 times; last: StaleWeights"):
        asyncio.run(retry(Replica(stale).ask, "generating", attempts=2, limit_s=1.0))


def test_a_pin_that_is_lost_goes_through_at_once_as_our_own_error() -> None:
    class Raised(PinLost):
        """As Ray raises it, with the replica's stack trace."""

    replica = Replica([NoRoom("full"), Raised("not pinned at version 4"), "answer"])
    with pytest.raises(PinLost, match="not pinned at version 4") as lost:
        asyncio.run(retry(replica.ask, "generating", attempts=9, limit_s=1.0, patient=True))
    assert lost.type is PinLost


def test_a_reward_that_was_away_too_long_is_not_asked_again() -> None:
    replica = Replica(
        [AwayTooLong("reward 'judge' was unavailable for reward.wait_limit_s = 600 s"), "answer"]
    )
    with pytest.raises(RunError, match=r"verifying failed: AwayTooLong: reward 'judge' was unavailable"):
        asyncio.run(retry(replica.ask, "verifying", attempts=9, limit_s=1.0))


def test_our_own_cancellation_goes_through_at_once() -> None:
    async def scenario() -> int:
        asked = 0

        async def ask(before: int) -> None:
            nonlocal asked
            asked += 1
            await asyncio.sleep(60)

        task = asyncio.create_task(retry(ask, "generating", attempts=9, limit_s=60.0))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asked

    assert asyncio.run(scenario()) == 1


def test_a_try_has_a_deadline() -> None:
    async def ask(before: int) -> None:
        await asyncio.sleep(60)

    with pytest.raises(RunError, match="failed 2 times; last: TimeoutError"):
        asyncio.run(retry(ask, "generating", attempts=2, limit_s=0.01))


def test_a_full_replica_is_no_failed_try() -> None:
    replica = Replica([*[NoRoom("64 requests")] * 9, "answer"])
    assert asyncio.run(retry(replica.ask, "generating", attempts=1, limit_s=1.0)) == "answer"
