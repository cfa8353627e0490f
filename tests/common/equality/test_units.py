"""What an answer measures: units, quantities in several units, scale words, money."""

from __future__ import annotations

import pytest

from common.equality import math_equal

SAME_SCALE = [
    (r"3\text{ million}", "3{,}000{,}000"),
    (r"3\text{ million}", r"3\times 10^6"),
    (r"3\text{ million}", "3 million"),
    (r"2.5\text{ billion}", "2500000000"),
    (r"2.5\text{ billion}", r"2500\text{ million}"),
    ("4000", r"4\text{ thousand}"),
    (r"\$3\text{ million}", r"\$3{,}000{,}000"),
    (r"\$3\text{ million}", r"3\text{ million dollars}"),
    ("36", r"3\text{ dozen}"),
    (r"3\text{ dozen}", r"36\text{ eggs}"),
    (r"\$28", "28"),
    ("28", r"\$28"),
    (r"\$28", r"28\text{ dollars}"),
    (r"\$28", r"2800\text{ cents}"),
    (r"\$0.28", r"28\text{ cents}"),
    (r"75\text{ cents}", r"\$0.75"),
    (r"75\text{ cents}", "75"),
    (r"\$1.50", r"\$1.5"),
    (r"\$\frac{3}{2}", r"\$1.50"),
    (r"1\text{ hundred thousand}", "100000"),
    (r"12\text{ trillion}", r"1.2\cdot 10^{13}"),
    ("-5000", r"-5\text{ thousand}"),
]
OTHER_SCALE = [
    ("28", r"28\text{ million}"),
    ("28", "28 million"),
    ("28", r"28\text{ thousand}"),
    ("28", r"28\text{ hundred}"),
    ("28", r"28\text{ dozen}"),
    ("28", "28 dozen"),
    (r"3\text{ million}", "3"),
    (r"3\text{ million}", r"3\text{ billion}"),
    (r"3\text{ million}", r"3\text{ dollars}"),
    (r"3 million", "30"),
    (r"\$3\text{ million}", r"\$3"),
    (r"\$3", r"\$3\text{ million}"),
    (r"\$28", r"28 \text{ cents}"),
    (r"\$28", r"28 cents"),
    (r"28\text{ cents}", r"\$28"),
    (r"28¢", r"\$28"),
    (r"\$28", r"28\text{ million dollars}"),
    (r"\frac{1}{2}", r"\frac{1}{2}\text{ million}"),
    (r"2\pi", r"2\pi\text{ thousand}"),
    (r"3\text{ dozen}", "3"),
    (r"3\text{ dozen}", r"3\text{ eggs}"),
    (r"4\text{ thousand}", "40000"),
]
SAME_QUANTITY = [
    (r"2\text{ hours }30\text{ minutes}", r"2\text{ hours and }30\text{ minutes}"),
    (r"2\text{ hours }30\text{ minutes}", r"150\text{ minutes}"),
    (r"2\text{ hours }30\text{ minutes}", r"2.5\text{ hours}"),
    (r"2\text{ hours }30\text{ minutes}", r"\frac{5}{2}\text{ hours}"),
    (r"2\text{ hours }30\text{ minutes}", "2 hours 30 minutes"),
    (r"2\text{ hours }30\text{ minutes}", "2 h 30 min"),
    (r"2\text{ hours }30\text{ minutes}", r"2\text{ hours, }30\text{ minutes}"),
    (r"2\text{ hours }30\text{ minutes}", "150"),
    ("150", r"2\text{ hours }30\text{ minutes}"),
    ("2.5", r"2\text{ hours }30\text{ minutes}"),
    (r"150\text{ minutes}", r"2\text{ hours }30\text{ minutes}"),
    (r"5\text{ feet }6\text{ inches}", r"66\text{ inches}"),
    (r"5\text{ feet }6\text{ inches}", r"5.5\text{ ft}"),
    (r"5\text{ feet }6\text{ inches}", r"5\text{ ft }6\text{ in}"),
    (r"5 feet 6 inches", r"5\text{ feet and }6\text{ inches}"),
    (r"3\text{ lb }4\text{ oz}", r"52\text{ oz}"),
    (r"1\text{ m }20\text{ cm}", r"120\text{ cm}"),
    (r"1\text{ m }20\text{ cm}", r"1.2\text{ m}"),
    (r"3\text{ dollars and }25\text{ cents}", r"\$3.25"),
    (r"1\text{ hour }1\text{ minute }1\text{ second}", r"3661\text{ s}"),
    (r"2\text{ weeks }1\text{ day}", r"15\text{ days}"),
    (r"11\text{ cm}", r"0.11\text{ m}"),
    (r"11\text{ cm}", "11"),
    ("11", r"11\text{ cm}"),
    (r"60\text{ mph}", r"60\text{ miles per hour}"),
    (r"60\text{ miles/hour}", r"1\text{ mile per minute}"),
    (r"5\text{ m/s}", r"18\text{ km/h}"),
    (r"5\text{ m}/\text{s}", r"5\text{ m}\,\text{s}^{-1}"),
    (r"28\text{ cm}^2", "28 cm^2"),
    (r"28\text{ cm}^2", r"28\text{ square centimeters}"),
    (r"28\text{ cm}^2", r"0.0028\text{ m}^2"),
    (r"28\text{ cm}^2", r"28\text{ cm}"),
    (r"36^\circ", "36"),
    ("36", r"36\text{ degrees}"),
    (r"36^{\circ}", r"36\text{ degrees}"),
    (r"12\text{ apples}", r"12\text{ red apples}"),
    (r"12\pi\text{ cm}^3", r"12\pi"),
    ("20", r"20\text{ square units}"),
    ("20", "20 units"),
]
OTHER_QUANTITY = [
    (r"2\text{ hours }30\text{ minutes}", r"2\text{ hours }45\text{ minutes}"),
    (r"2\text{ hours }30\text{ minutes}", r"2\text{ hours}"),
    (r"2\text{ hours }30\text{ minutes}", r"30\text{ minutes}"),
    (r"2\text{ hours }30\text{ minutes}", "30"),
    (r"2\text{ hours }30\text{ minutes}", "2"),
    (r"2\text{ hours }30\text{ minutes}", "230"),
    (r"2\text{ hours }30\text{ minutes}", "2.3"),
    (r"2\text{ hours }30\text{ minutes}", "32"),
    (r"2\text{ hours }30\text{ minutes}", r"3\text{ hours }30\text{ minutes}"),
    (r"2 hours 30 minutes", "2 hours 45 minutes"),
    (r"2 hours 30 minutes", "30 hours 2 minutes"),
    ("30", r"2\text{ hours }30\text{ minutes}"),
    ("2", r"2\text{ hours }30\text{ minutes}"),
    (r"5\text{ feet }6\text{ inches}", r"5\text{ feet}"),
    (r"5\text{ feet }6\text{ inches}", r"6\text{ inches}"),
    (r"5\text{ feet }6\text{ inches}", r"5.6\text{ feet}"),
    (r"5\text{ feet }6\text{ inches}", r"5\text{ feet }7\text{ inches}"),
    (r"5 feet 6 inches", "5 feet"),
    (r"3\text{ lb }4\text{ oz}", r"34\text{ oz}"),
    (r"8\text{ cm}", r"5\text{ cm}, 3\text{ cm}"),
    (r"1\text{ m }20\text{ cm}", r"21\text{ cm}"),
    (r"3\text{ dollars and }25\text{ cents}", r"\$28"),
    (r"11\text{ cm}", r"11\text{ m}"),
    (r"11\text{ cm}", r"11\text{ inches}"),
    (r"11\text{ cm}", r"11\text{ kg}"),
    (r"5\text{ minutes}", r"5\text{ hours}"),
    (r"60\text{ mph}", r"60\text{ km/h}"),
    (r"60\text{ miles per hour}", r"60\text{ miles}"),
    (r"28\text{ cm}^2", r"28\text{ m}^2"),
    ("2", "2h"),
    ("5", r"5\mathrm{i}"),
    ("3", "3 x"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME_SCALE)
def test_a_scale_word_is_part_of_the_number_and_money_keeps_its_size(gold: str, answer: str) -> None:
    assert math_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), OTHER_SCALE)
def test_another_scale_is_another_number(gold: str, answer: str) -> None:
    assert not math_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), SAME_QUANTITY)
def test_a_quantity_is_the_same_in_other_units_and_may_leave_its_unit_out(gold: str, answer: str) -> None:
    assert math_equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), OTHER_QUANTITY)
def test_every_part_of_a_quantity_counts_and_units_differ_in_size(gold: str, answer: str) -> None:
    assert not math_equal(gold, answer)
