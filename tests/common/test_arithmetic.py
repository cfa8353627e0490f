from itertools import islice

import pytest

from hora_rl.common.data.arithmetic import DEFAULT_DIGITS, Addition, generate, split_of, stream


def pairs(problems):
    return {tuple(sorted((p.a, p.b))) for p in problems}


def test_training_and_held_out_problems_never_meet_whatever_the_seeds():
    train = pairs(generate(0, "train", 1500)) | pairs(islice(stream(7, "train", {1: 1, 2: 1}), 5000))
    held_out = pairs(generate(1, "held-out", 800)) | pairs(islice(stream(7, "held-out", {1: 1, 2: 1}), 5000))
    assert train
    assert held_out
    assert not train & held_out


def test_every_problem_of_one_and_two_digits_is_on_exactly_one_side_and_so_is_its_mirror_image():
    shares = []
    for low, high in ((0, 10), (10, 100)):
        sides = {(a, b): split_of(a, b) for a in range(low, high) for b in range(low, high)}
        assert all(sides[a, b] == sides[b, a] for a, b in sides)
        shares.append(sum(side == "held-out" for side in sides.values()) / len(sides))
    assert 0.1 < shares[0] < 0.3
    assert 0.18 < shares[1] < 0.22


def test_a_seed_gives_the_same_problems_a_larger_set_begins_with_the_smaller_one_and_nothing_repeats():
    small, large = generate(0, "train", 100), generate(0, "train", 1000)
    assert large[:100] == small != generate(4, "train", 100)
    assert len(set(large)) == 1000


def test_digits_come_in_the_shares_asked_for():
    rows = generate(0, "train", 1000)
    for n, weight in DEFAULT_DIGITS.items():
        share = sum(p.digits == n for p in rows) / len(rows)
        assert abs(share - weight) < 0.04, (n, share, weight)
    assert {p.digits for p in generate(0, "train", 100, {3: 1.0, 5: 0.0})} == {3}
    rows = generate(0, "train", 300, {1: 1.0, 2: 1.0})
    assert len(set(rows)) == 300, "a class that runs out leaves its share to the others"
    assert sum(p.digits == 1 for p in rows) <= 100


def test_the_worked_solution_leads_to_the_answer():
    assert Addition(37, 58).completion == "<think>7+8+0=15,3+5+1=9</think><answer>95</answer>"
    for p in generate(2, "train", 300):
        assert len(str(p.a)) == len(str(p.b)) == p.digits
        columns = [column.split("=") for column in p.solution.split(",")]
        totals = [int(total) for _, total in columns]
        assert all(sum(map(int, left.split("+"))) == int(total) for left, total in columns)
        written = str(totals[-1]) + "".join(str(total % 10) for total in reversed(totals[:-1]))
        assert written == p.answer == str(p.a + p.b)


@pytest.mark.parametrize(
    ("rows", "digits", "named"),
    [(101, {1: 1.0}, "101 rows"), (5, {7: 1.0}, "7 digits"), *((5, {2: w}, "weights") for w in (0.0, -1.0))],
)
def test_what_cannot_be_generated_is_refused_by_name(rows, digits, named):
    with pytest.raises(ValueError, match=named):
        generate(0, "train", rows, digits)
