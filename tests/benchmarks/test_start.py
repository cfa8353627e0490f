"""Where a start's seconds went is told in order, and imports are those of a process of their own."""

from benchmarks.start import Imported, Watched, imported, spans


def test_events_are_in_order_with_the_seconds_since_the_one_before() -> None:
    seen = Watched(began=100.0)
    for event, at in (("step", 130.0), ("Redis", 102.0), ("group", 110.0), ("Redis", 125.0)):
        seen.note(event, at)
    assert spans(seen.marks) == [("Redis", 2.0, 2.0), ("group", 10.0, 8.0), ("step", 30.0, 20.0)]


def test_processes_of_one_part_are_summed() -> None:
    seen = Watched(began=0.0, processor={1: ("Ray", 1.5), 2: ("learner", 2.0), 3: ("Ray", 0.5)})
    assert seen.of_parts() == {"Ray": 2.0, "learner": 2.0}


def test_what_a_process_imports_is_measured_in_a_new_one() -> None:
    found = imported("json,allocator.rules")
    assert isinstance(found, Imported)
    assert found.large == ()
    assert 0 < found.processor_s < 30
    assert found.memory_mib > 5
