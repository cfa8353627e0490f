"""Only the time in which a sequence gets tokens counts against its limit."""

from actors.generator.time_limit import Clock


def test_a_sequence_is_overdue_when_it_got_tokens_for_longer_than_its_limit() -> None:
    clock = Clock(limit_s=3.0)
    overdue = [clock.look({"a": n, "b": 0}, 1.0) for n in range(6)]
    assert overdue == [[], [], [], [], ["a"], ["a"]]


def test_neither_a_queue_nor_a_pause_nor_a_preemption_counts() -> None:
    clock = Clock(limit_s=3.0)
    counts = [0] * 100 + [1, 2] + [2] * 100 + [3] + [3] * 100
    assert all(clock.look({"a": n}, 1.0) == [] for n in counts)
    assert clock.look({"a": 4}, 1.0) == ["a"]


def test_a_name_that_comes_again_begins_anew() -> None:
    clock = Clock(limit_s=1.5)
    clock.look({"a": 1}, 1.0)
    clock.look({"a": 2}, 1.0)
    assert clock.look({}, 1.0) == []
    assert clock.look({"a": 1}, 1.0) == []
    assert clock.look({"a": 2}, 1.0) == []


def test_an_engine_stands_still_when_no_sequence_gets_tokens_and_nobody_paused_it() -> None:
    clock = Clock(limit_s=100.0)
    for _ in range(5):
        clock.look({"a": 7, "b": 0}, 1.0)
    assert clock.still_s == 4.0
    clock.look({"a": 7, "b": 0}, 1.0, paused=True)
    assert clock.still_s == 0.0
    clock.look({"a": 7, "b": 0}, 1.0)
    clock.look({"a": 7, "b": 1}, 1.0)
    assert clock.still_s == 0.0
    clock.look({}, 1.0)
    assert clock.still_s == 0.0
