"""What finds no place is told with the numbers, and nothing is told while parts only take their time."""

from deploy.launch.placement import Share, unplaced


def shares(*, generators: int, up: int, ranks_up: int = 1, cpus: float = 0.5) -> list[Share]:
    return [
        Share("generator", generators, up, {"CPU": cpus, "GPU": 0.0}),
        Share("verifier", 1, 1, {"CPU": 0.25, "GPU": 0.0}),
        Share("coordinator", 1, 1, {"CPU": 0.25, "GPU": 0.0}),
        Share("learner rank", 1, ranks_up, {"CPU": 1.0, "GPU": 0.0}),
    ]


def test_a_replica_that_two_cpus_cannot_hold_is_told_with_both_numbers() -> None:
    said = unplaced(shares(generators=2, up=1), {"CPU": 2.0})
    assert said.startswith("no place for 1 of 2 generator: 2.5 CPUs are reserved")
    assert "2 generator · 0.5" in said
    assert "the cluster has 2;" in said


def test_the_learner_that_found_the_places_taken_is_told() -> None:
    said = unplaced(shares(generators=2, up=2, ranks_up=0), {"CPU": 2.0})
    assert said.startswith("no place for 1 of 1 learner rank")


def test_parts_that_fit_and_only_start_are_no_trouble() -> None:
    assert unplaced(shares(generators=1, up=0, ranks_up=0), {"CPU": 2.0}) == ""
    assert unplaced(shares(generators=2, up=2, cpus=0.9), {"CPU": 2.0}) == "", "everything runs"


def test_gpus_are_counted_too() -> None:
    both = [
        Share("generator", 2, 1, {"CPU": 0.5, "GPU": 1.0}),
        Share("learner rank", 2, 2, {"CPU": 1.0, "GPU": 1.0}),
    ]
    assert "4 GPUs are reserved" in unplaced(both, {"CPU": 16.0, "GPU": 3.0})
    assert unplaced(both, {"CPU": 16.0, "GPU": 4.0}) == ""
