"""Requests of one prompt meet on one replica, until it is overloaded."""

from collections import Counter

from actors.generator.router import ranked

NAMES = [f"replica-{i}" for i in range(4)]


def test_all_requests_of_a_prompt_go_home_and_prompts_spread_evenly() -> None:
    homes = [ranked(p, NAMES, {}, slack=4)[0] for p in range(2000)]
    assert homes == [ranked(p, list(reversed(NAMES)), {}, slack=4)[0] for p in range(2000)]
    assert all(400 < n < 600 for n in Counter(homes).values())


def test_a_home_that_is_overloaded_comes_last_and_the_least_busy_first() -> None:
    home, *_ = ranked(7, NAMES, {}, slack=4)
    others = [n for n in NAMES if n != home]
    busy = {home: 9, others[0]: 3, others[1]: 4, others[2]: 5}
    assert ranked(7, NAMES, busy, slack=4) == [*others, home]
    assert ranked(7, NAMES, {**busy, home: 7}, slack=4)[0] == home


def test_a_replica_that_leaves_moves_only_its_own_prompts() -> None:
    before = {p: ranked(p, NAMES, {}, slack=4)[0] for p in range(500)}
    after = {p: ranked(p, NAMES[:3], {}, slack=4)[0] for p in range(500)}
    assert all(after[p] == home for p, home in before.items() if home != NAMES[3])
    assert {after[p] for p, home in before.items() if home == NAMES[3]} == set(NAMES[:3])


def test_a_request_that_was_lost_goes_elsewhere_and_then_home_again() -> None:
    home = ranked(7, NAMES, {}, slack=4, attempt=0)[0]
    assert ranked(7, NAMES, {}, slack=4, attempt=1)[-1] == home
    assert ranked(7, NAMES, {}, slack=4, attempt=2)[0] == home
    assert ranked(7, [home], {}, slack=4, attempt=1) == [home]
