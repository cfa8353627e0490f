"""An engine is hung when requests are open and no sequence gets a token."""

from hora_rl.actors.generator.stall import Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_only_open_requests_without_a_token_count() -> None:
    clock = Clock()
    progress = Progress(clock)
    clock.now += 500
    assert progress.still_s == 0.0, "idle"
    with progress.request():
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
    assert progress.still_s == 0.0


def test_a_request_that_fails_is_not_open_any_more() -> None:
    clock = Clock()
    progress = Progress(clock)
    try:
        with progress.request():
            raise ConnectionError
    except ConnectionError:
        clock.now += 9
    assert progress.still_s == 0.0
