import json
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hora_rl.common.errors import WireError
from hora_rl.common.msgpack_count import count_objects
from hora_rl.common.types import Group, Origin, Phase, Rollout, Turn, VersionSpan
from hora_rl.common.wire import MAX_OBJECTS, decode_group, encode_extra, encode_group, encode_pre_rollouts
from tests.support.groups import group, rollout

Change = Callable[[dict[str, Any]], object]
NAN = float("nan")
RANKS = {"a:rank": [2.0, 1.0], "a:rank[share]": [0.5, 0.0]}
GROUP_FIELDS = ["schema", "run", "epoch", "prior", "rollouts", "sampling", "rule"]
EXTRA_FIELDS = ["schema", "group", "rollouts", "sampling"]


def sampled(phase: Phase = "A", n: int = 5) -> Rollout:
    spans, rewards = (VersionSpan(3, 0, 2), VersionSpan(4, 2, n)), {"accuracy": 1.0, "format": 0.0}
    made = rollout(np.arange(n), logprobs=-np.linspace(0.0, 2.0, n), spans=spans, phase=phase)
    return replace(made, rewards=rewards | {"my.module:own": 0.25}, round=int(phase == "B"))


def whole_group() -> Group:
    place = {"run": "run", "epoch": 2, "batch": 5, "shard": 1, "tokenizer": "tok"}
    planned = {"rule": "hit_utility", "prior": (1.0, 1.5), "pre_rollouts": 2, "prompt": [7, 8]}
    return group(17, [sampled(), sampled(), sampled("B", 7)], **place, **planned)


def damaged(change: Change, message: bytes | None = None) -> bytes:
    raw = msgpack.unpackb(message or encode_group(whole_group()))
    change(raw)
    return msgpack.packb(raw)


def damaged_extra(change: Change) -> tuple[bytes, bytes]:
    return encode_pre_rollouts(whole_group()), damaged(change, encode_extra(whole_group()))


def first(raw: dict[str, Any], **values: object) -> None:
    raw["rollouts"][0].update(values)


def full_group(own: bool = True) -> Group:
    """A group with all that a group may have: turns, origins, rounds, and rewards that rank it. `own`: its
    rollouts also have rewards of their own."""
    given = np.array([7, 8], np.int32)
    turns = (Turn(2, given[:0]), Turn(1, given), Turn(2, given, anew=True))
    first = replace(sampled(), turns=turns, origin=Origin("generator-7", 1.5, 2.0, 3.25, 4.0))
    later = [replace(sampled("B", n), round=number) for n, number in ((4, 1), (5, 1), (6, 3))]
    ranked = [{name: [*values, 0.0, 0.0, 0.0][i] for name, values in RANKS.items()} for i in range(5)]
    pairs = zip((first, sampled(), *later), ranked, strict=True)
    rollouts = tuple(replace(r, rewards=(r.rewards if own else {}) | ranks) for r, ranks in pairs)
    more = {"source": "sums", "size_as_if": 3, "ranked": tuple(RANKS), "prior": (np.float64(1), 1.5)}
    return replace(whole_group(), **more, rollouts=rollouts)


def told(group: Group) -> str:
    return json.dumps(asdict(group), default=np.ndarray.tolist)


def messages(group: Group, *rounds: set[int]) -> list[bytes]:
    """The pre-rollouts, and the Phase B rollouts of each of these sets of rounds."""
    parts = [tuple(r for r in group.rollouts if r.phase == "A" or r.round in some) for some in rounds]
    return [encode_pre_rollouts(group), *(encode_extra(replace(group, rollouts=part)) for part in parts)]


@pytest.mark.parametrize("rounds", [({1, 3},), ({1}, {3})], ids=["together", "apart"])
@pytest.mark.parametrize("own", [True, False])
def test_a_group_comes_back_as_it_was_from_all_its_messages(rounds: tuple[set[int], ...], own: bool) -> None:
    whole = full_group(own)
    parts = messages(whole, *rounds)
    assert told(decode_group(*parts, run="run", tokenizer="tok", vocabulary=9)) == told(whole)
    size = sum(map(len, parts))
    with pytest.raises(WireError, match=f"{size} bytes exceeds the limit of {size - 1}"):
        decode_group(*parts, max_bytes=size - 1)


def test_a_group_comes_back_from_one_message_which_says_nothing_of_what_it_has_not() -> None:
    message = encode_group(whole_group())
    assert told(decode_group(message)) == told(whole_group())
    assert not {"turns", "origin", "round"} & msgpack.unpackb(message)["rollouts"][0].keys()


def test_the_pre_rollouts_are_a_group_by_themselves_without_what_ranks_the_whole() -> None:
    whole = full_group()
    alone = decode_group(encode_pre_rollouts(whole))
    assert (alone.id, alone.size, alone.rounds) == ("2:17", 2, ())
    assert not set(RANKS) & {name for r in alone.rollouts for name in r.rewards}
    assert encode_pre_rollouts(alone) == encode_pre_rollouts(whole), "written before anything was ranked"
    assert decode_group(*messages(alone, {1})).size == 2, "no extra rollouts"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(group="2:18"), "group 2:17: its extra rollouts are of group '2:18'"),
        (lambda r: r.update(sampling="2"), "drawn to other pre-rollouts"),
        (lambda r: first(r, phase="A"), "exactly G0 = 2 rollouts of Phase A"),
        (lambda r: r.update(schema=99), "schema version 99"),
        (lambda r: r.pop("rollouts"), "missing required field `rollouts`"),
        *((lambda r, n=n: first(r, round=n), "at `$.rollouts[0].round`") for n in (0, 65_537, "2", True)),
        (lambda r: r.update(ranked={}), "length >= 1 - at `$.ranked`"),
        (lambda r: r.update(ranked={"a:rank": [1.0]}), "'a:rank' ranks not all 2 of its pre-rollouts"),
        (lambda r: r.update(ranked={"a:rank": 1.0}), "Expected `array`, got `float` - at `$.ranked"),
        (lambda r: r.update(ranked={"a:rank": [1.0, NAN]}), "e+308 - at `$.ranked[...][1]`"),
        (lambda r: r.update(ranked={"": [1.0, 1.0]}), "`str` of length >= 1 - at `key` in `$.ranked`"),
    ],
)
def test_a_message_of_phase_b_that_cannot_be_is_refused(change: Change, message: str) -> None:
    with pytest.raises(WireError) as refused:
        decode_group(*damaged_extra(change))
    assert message in str(refused.value)


TWO = [[2, b"", False], [3, b"\7\0\0\0", False]]
REFUSED_TURNS = [
    (TWO[:1], "length >= 2 - at `$.rollouts[0].turns`"),
    ([[1, b"", False]] * 5000, "length <= 4096 - at `$.rollouts[0].turns`"),
    (5, "Expected `array`, got `int` - at `$.rollouts[0].turns`"),
    (None, "Expected `array`, got `null` - at `$.rollouts[0].turns`"),
    ([TWO[0], [2, b"", False]], "turns cover 4 of 5 tokens"),
    ([[2, b"\7\0\0\0", False], TWO[1]], "the first of its turns must follow the prompt"),
    ([TWO[0], [0, b"", False], TWO[1]], "turn 1 has no sampled token"),
    ([TWO[0], [3, b"", True]], "turn 1 has no context"),
    ([TWO[0], [3, b"abc", False]], "turns must be a buffer of 4-byte values"),
    ([TWO[0], [3, b"\x09\0\0\0", False]], "a token id is outside the vocabulary of 9"),
    ([TWO[0], [3, b""]], "`array` of length 3, got 2 - at `$.rollouts[0].turns[1]`"),
    ([TWO[0], [True, b"", False]], "Expected `int`, got `bool` - at `$.rollouts[0].turns[1][0]`"),
]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(schema=3), "schema version 3, this reader knows 4: use one version of hora"),
        (lambda r: r.pop("schema"), "schema version None"),
        (lambda r: r.update(epoch=-1), "`int` >= 0 - at `$.epoch`"),
        (lambda r: r.update(prompt=b""), "the prompt is empty"),
        (lambda r: r.update(prompt=b"abc"), "prompt must be a buffer of 4-byte values"),
        (lambda r: r.update(pre_rollouts=3), "exactly G0 = 3 rollouts of Phase A"),
        (lambda r: r.update(pre_rollouts=9), "1 <= G0 <= G_i"),
        (lambda r: r.update(prior=[0.0, 1.0]), "`float` > 0.0 - at `$.prior[0]`"),
        (lambda r: first(r, tokens=b"\0" * 16), "5 log-probs for 4 tokens"),
        (lambda r: first(r, logprobs=np.full(5, 0.1, "<f4").tobytes()), "finite and at most 0"),
        (lambda r: first(r, logprobs=np.full(5, np.nan, "<f4").tobytes()), "finite and at most 0"),
        (lambda r: first(r, logprobs=np.full(5, -np.inf, "<f4").tobytes()), "finite and at most 0"),
        (lambda r: first(r, spans=[[0, 0, 4]]), "spans cover 4 of 5 tokens"),
        (lambda r: first(r, spans=[[5, 0, 2], [4, 2, 5]]), "versions never falling"),
        (lambda r: first(r, spans=[[0, 1, 5]]), "spans must follow each other"),
        (lambda r: first(r, phase="C"), "'C' - at `$.rollouts[0].phase`"),
        (lambda r: first(r, finish="abort"), "'abort' - at `$.rollouts[0].finish`"),
        (lambda r: first(r, rewards=[]), "`object`, got `array` - at `$.rollouts[0].rewards`"),
        (lambda r: first(r, rewards={str(i): 1.0 for i in range(65)}), "<= 64 - at `$.rollouts[0].rewards`"),
        (lambda r: first(r, origin=["g", 1.0, 2.0, 3.0]), "length 5, got 4 - at `$.rollouts[0].origin`"),
        (lambda r: first(r, origin=["", 1.0, 2.0, 3.0, 4.0]), ">= 1 - at `$.rollouts[0].origin[0]`"),
        (lambda r: first(r, origin=["g", 1.0, 2.0, NAN, 4.0]), "+308 - at `$.rollouts[0].origin[3]`"),
        (lambda r: r.update(source=7), "Expected `str`, got `int` - at `$.source`"),
        (lambda r: first(r, success=1), "Expected `bool`, got `int` - at `$.rollouts[0].success`"),
        (lambda r: first(r, rewards={"accuracy": NAN}), "+308 - at `$.rollouts[0].rewards"),
        (lambda r: first(r, tokens=np.array([1, 2, 3, 4, 9], "<i4").tobytes()), "outside the vocabulary of"),
        (lambda r: first(r, tokens=np.array([1, -2, 3, 4, 5], "<i4").tobytes()), "outside the vocabulary"),
        *((lambda r, t=turns: first(r, turns=t), said) for turns, said in REFUSED_TURNS),
        (lambda r: r.update(run="other"), "is of run 'other', not 'run'"),
        (lambda r: r.update(tokenizer="other"), "was written with tokenizer 'other'"),
    ],
)
def test_what_a_learner_could_not_train_on_is_refused_with_the_reason(change: Change, message: str) -> None:
    with pytest.raises(WireError) as refused:
        decode_group(damaged(change), run="run", tokenizer="tok", vocabulary=9)
    assert message in str(refused.value)


def nested(depth: int, value: Any = None) -> Any:
    for _ in range(depth):
        value = [value]
    return value


EMPTY_MAPS = b"\xdd" + (MAX_OBJECTS + 1).to_bytes(4, "big") + b"\x80" * (MAX_OBJECTS + 1)
EMPTY_MAPS_IN_LISTS = b"\xdc\xff\xff" + (b"\xdc\xff\xff" + b"\x80" * 65_535) * 65
TEXTS_IN_OPEN_LISTS = (b"\xdc\xff\xff" + b"\xa2ab" * 65_534) * 65
LISTS_THAT_TAKE_ROOM = (b"\xdd" + (2**22).to_bytes(4, "big")) * 1000 + bytes(2**22 - 5000)
LONG_TEXT = b"\x81\xa1t\xdb" + (3 * 2**20).to_bytes(4, "big") + b"a" * (3 * 2**20 - 4) + "\U0001f600".encode()


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (EMPTY_MAPS, MAX_OBJECTS),
        (EMPTY_MAPS_IN_LISTS, 2**16),  # a lower one, for tracemalloc is slow
        (TEXTS_IN_OPEN_LISTS, 2**16),
        (LISTS_THAT_TAKE_ROOM, MAX_OBJECTS),
        (LONG_TEXT, MAX_OBJECTS),
        *((data, MAX_OBJECTS) for data in (b"", b"\xc1", b"\x93\x01", b"\x81" * 5000, b"pickle")),
    ],
)
def test_a_message_that_would_grow_in_memory_is_refused_without_taking_it(
    data: bytes, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hora_rl.common.wire.MAX_OBJECTS", limit)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_group(data)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


LEAVES = st.none() | st.floats() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=300)
LEAVES |= st.sampled_from([b"x" * 255, b"x" * 256, b"x" * 65_536, "t" * 65_535, "t" * 65_536])
LEAVES |= st.sampled_from([1, 2, 3, 4, 8, 16, 256, 65_536]).map(lambda n: msgpack.ExtType(5, bytes(n)))


@settings(max_examples=300, deadline=None)
@example([None] * 70_000)
@example(dict.fromkeys(map(str, range(70_000))))
@given(st.recursive(LEAVES, lambda some: st.lists(some) | st.dictionaries(st.text(), some)))
def test_objects_are_counted_as_the_decoder_makes_them(value: Any) -> None:
    def made(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + sum(made(k) + made(v) for k, v in value.items())
        return 1 + sum(map(made, value)) if isinstance(value, list) else 1

    data, count = msgpack.packb(value), made(value)
    assert count_objects(data, count) == count
    assert count_objects(data, count - 1) > count - 1
    assert count_objects(data[: len(data) // 2], count) <= count


@pytest.mark.parametrize(
    ("made", "field"), [*((damaged, f) for f in GROUP_FIELDS), *((damaged_extra, f) for f in EXTRA_FIELDS)]
)
@pytest.mark.parametrize("value", [nested(1000), b"x" * 2**22, {"a": 2**63}], ids=["deep", "long", "map"])
def test_an_error_about_a_deep_or_long_value_does_not_write_it_out(made: Any, field: str, value: Any) -> None:
    found = made(lambda r: r.update({field: value}))
    tracemalloc.start()
    try:
        with pytest.raises(WireError) as refused:
            decode_group(*([found] if isinstance(found, bytes) else found))
        assert tracemalloc.get_traced_memory()[1] < 6 * 2**20, "the value itself, once"
    finally:
        tracemalloc.stop()
    assert len(str(refused.value)) < 300


def test_twenty_thousand_mutations_decode_or_are_refused() -> None:
    rng, data, refused = random.Random(0), encode_group(whole_group()), 0
    for _ in range(20_000):
        mutated = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        if rng.random() < 0.2:
            del mutated[rng.randrange(len(mutated)) :]
        try:
            decode_group(bytes(mutated), run="run", tokenizer="tok", vocabulary=9)
        except WireError:
            refused += 1
    assert refused > 5_000
