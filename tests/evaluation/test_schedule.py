import pytest

from hora_rl.evaluation.schedule import Next, is_late, next_evaluation


@pytest.mark.parametrize(
    ("version", "done", "begun", "step", "left_out"),
    [
        (0, (), (), 0, ()),
        (4, (0,), (), None, ()),
        (5, (0,), (), 5, ()),
        (9, (0,), (), 5, ()),
        (17, (0,), (), 15, (5, 10)),
        (17, (0,), (5,), 5, ()),
        (17, (0, 10), (5,), 5, ()),
        (20, (0, 5, 10, 15), (), None, ()),  # the last step's own follows training
        (25, (0, 5, 10), (), 15, ()),
        (3, (), (), None, (0,)),  # the initial policy is trained: nothing to compare with is left
        (3, (), (0,), 0, ()),
        (6, (), (), 5, (0,)),
    ],
)
def test_the_newest_due_evaluation_is_next_unless_one_has_begun(version, done, begun, step, left_out):
    assert next_evaluation(5, 20, version, done, begun) == Next(step, left_out)


def test_an_evaluation_is_late_when_the_next_one_is_due():
    assert [is_late(5, 10, version) for version in (10, 14, 15)] == [False, False, True]
