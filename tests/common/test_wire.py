import json
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from hora_rl.common.errors import WireError
from hora_rl.common.types import Group, Origin, Phase, Rollout, Turn, VersionSpan
from hora_rl.common.wire import decode_group, encode_extra, encode_group, encode_pre_rollouts
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
    raw = msgspec.msgpack.decode(message or encode_group(whole_group()))
    change(raw)
    return msgspec.msgpack.encode(raw)


def damaged_extra(change: Change) -> tuple[bytes, bytes]:
    return encode_pre_rollouts(whole_group()), damaged(change, encode_extra(whole_group()))


def full_group(own: bool = True) -> Group:
    """A group with all that a group may have: turns, origins, rounds, and rewards that rank it. `own`: its
    rollouts also have rewards of their own."""
    context = np.array([7, 8], np.int32)
    turns = (Turn(2, context[:0]), Turn(1, context), Turn(2, context, anew=True))
    first = replace(sampled(), turns=turns, origin=Origin("generator-7", 1.5, 2.0, 3.25, 4.0))
    later = [replace(sampled("B", n), round=number) for n, number in ((4, 1), (5, 1), (6, 3))]
    ranked = [{name: [*values, 0.0, 0.0, 0.0][i] for name, values in RANKS.items()} for i in range(5)]
    pairs = zip((first, sampled(), *later), ranked, strict=True)
    rollouts = tuple(replace(r, rewards=(r.rewards if own else {}) | ranks) for r, ranks in pairs)
    more = {"source": "sums", "size_as_if": 3, "ranked": tuple(RANKS), "prior": (np.float64(1), 1.5)}
    return replace(whole_group(), **more, rollouts=rollouts)


def as_text(group: Group) -> str:
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
    assert as_text(decode_group(*parts, run="run", tokenizer="tok", vocabulary=9)) == as_text(whole)
    size = sum(map(len, parts))
    with pytest.raises(WireError, match=str(size)):
        decode_group(*parts, max_bytes=size - 1)


def test_the_pre_rollouts_are_a_group_by_themselves_without_what_ranks_the_whole() -> None:
    whole = full_group()
    alone = decode_group(encode_pre_rollouts(whole))
    assert (alone.id, alone.size, alone.rounds) == ("2:17", 2, ())
    assert not set(RANKS) & {name for r in alone.rollouts for name in r.rewards}
    assert encode_pre_rollouts(alone) == encode_pre_rollouts(whole), "written before anything was ranked"
    assert decode_group(*messages(alone, {1})).size == 2, "no extra rollouts"
    plain = encode_group(whole_group())
    assert as_text(decode_group(plain)) == as_text(whole_group())
    assert not {"turns", "origin", "round"} & msgspec.msgpack.decode(plain)["rollouts"][0].keys(), "not said"


def of_first(**values: object) -> Change:
    return lambda raw: raw["rollouts"][0].update(values)


def of_message(**values: object) -> Change:
    return lambda raw: raw.update(values)


TWO = [[2, b"", False], [3, b"\7\0\0\0", False]]
EXTRA = [
    (of_message(group="2:18"), "group '2:18'"),
    (of_message(sampling="2"), "other pre-rollouts"),
    (of_first(phase="A"), "G0 = 2"),
    (of_message(schema=99), "schema"),
    (lambda raw: raw.pop("rollouts"), "`rollouts`"),
    *((of_first(round=n), "`$.round`") for n in (0, 65_537, "2", True)),
    (of_message(ranked={}), "`$.ranked`"),
    (of_message(ranked={"a:rank": [1.0]}), "'a:rank'"),
    (of_message(ranked={"a:rank": 1.0}), "`$.ranked"),
    (of_message(ranked={"a:rank": [1.0, NAN]}), "`$.ranked"),
    (of_message(ranked={"": [1.0, 1.0]}), "`$.ranked`"),
]
GROUP = [
    (of_message(schema=3), "one version of hora"),
    (lambda raw: raw.pop("schema"), "one version of hora"),
    (of_message(epoch=-1), "`$.epoch`"),
    (of_message(prompt=b""), "prompt"),
    (of_message(prompt=b"abc"), "prompt"),
    (of_message(pre_rollouts=3), "G0 = 3"),
    (of_message(pre_rollouts=9), "G0 = 9"),
    (of_message(prior=[0.0, 1.0]), "`$.prior[0]`"),
    (of_message(source=7), "`$.source`"),
    (of_message(run="other"), "run 'other'"),
    (of_message(tokenizer="other"), "tokenizer 'other'"),
    (of_first(tokens=b"\0" * 16), "5 log-probs for 4 tokens"),
    *((of_first(logprobs=np.full(5, x, "<f4").tobytes()), "log-probs") for x in (0.1, NAN, -np.inf)),
    *((of_first(tokens=np.array([1, x, 3, 4, 5], "<i4").tobytes()), "vocabulary") for x in (9, -2)),
    (of_first(spans=[[0, 0, 4]]), "spans cover 4 of 5"),
    (of_first(spans=[[5, 0, 2], [4, 2, 5]]), "version 4"),
    (of_first(spans=[[0, 1, 5]]), "from 1 to 5"),
    (of_first(phase="C"), "`$.phase`"),
    (of_first(finish="abort"), "`$.finish`"),
    (of_first(success=1), "`$.success`"),
    *((of_first(rewards=x), "`$.rewards") for x in ([], {"a": NAN}, {str(i): 1.0 for i in range(65)})),
    *((of_first(origin=["g", 1.0, 2.0, 3.0, 4.0][:n]), "`$.origin`") for n in (0, 4)),
    (of_first(origin=["", 1.0, 2.0, 3.0, 4.0]), "`$.origin[0]`"),
    (of_first(origin=["g", 1.0, 2.0, NAN, 4.0]), "`$.origin[3]`"),
    *((of_first(turns=x), "`$.turns`") for x in (TWO[:1], [[1, b"", False]] * 5000, 5, None)),
    (of_first(turns=[TWO[0], [2, b"", False]]), "turns cover 4 of 5"),
    (of_first(turns=[[2, b"\7\0\0\0", False], TWO[1]]), "first of its turns"),
    (of_first(turns=[TWO[0], [0, b"", False], TWO[1]]), "turn 1 has no sampled token"),
    (of_first(turns=[TWO[0], [3, b"", True]]), "turn 1 has no context"),
    (of_first(turns=[TWO[0], [3, b"abc", False]]), "turns"),
    (of_first(turns=[TWO[0], [3, b"\x09\0\0\0", False]]), "vocabulary"),
    (of_first(turns=[TWO[0], [3, b""]]), "`$.turns[1]`"),
    (of_first(turns=[TWO[0], [True, b"", False]]), "`$.turns[1][0]`"),
]


@pytest.mark.parametrize(
    ("made", "change", "named"), [*((damaged_extra, *c) for c in EXTRA), *((damaged, *c) for c in GROUP)]
)
def test_what_a_learner_could_not_train_on_is_refused_by_name(made: Any, change: Change, named: str) -> None:
    data = made(change)
    with pytest.raises(WireError) as refused:
        decode_group(*([data] if isinstance(data, bytes) else data), run="run", tokenizer="tok", vocabulary=9)
    assert named in str(refused.value)


def nested(depth: int, value: Any = None) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def length(mark: bytes, n: int) -> bytes:
    return mark + n.to_bytes(4, "big")


MAPS = length(b"\xdd", 2**22) + b"\x80" * 2**22
OPEN_LISTS = length(b"\xdd", 2**22) * 1000 + bytes(2**22 - 5000)
LISTS_IN_LISTS = (b"\xdc\xff\xff" + b"\xdc\xff\xff" + b"\x80" * 65_535) * 65
TEXT = length(b"\xdb", 3 * 2**20) + b"a" * (3 * 2**20 - 4) + "\U0001f600".encode()
BOMBS = [MAPS, OPEN_LISTS, LISTS_IN_LISTS, TEXT, *(length(m, 2**32 - 1) for m in (b"\xc6", b"\xdd", b"\xdf"))]


@pytest.mark.parametrize("bomb", [*BOMBS, b"\x81" * 5000, b"", b"\xc1", b"\x93\x01", b"pickle"])
@pytest.mark.parametrize("before", ["", "unknown", "rollouts", "spans", "turns", "rewards"])
def test_a_message_that_would_grow_in_memory_is_refused_without_taking_it(before: str, bomb: bytes) -> None:
    data = msgspec.msgpack.encode({"schema": 4})[1:]
    data = b"\x82" + data + msgspec.msgpack.encode(before) + bomb if before else bomb
    if before in ("spans", "turns", "rewards"):
        raw = {
            k: v for k, v in msgspec.msgpack.decode(encode_group(whole_group())).items() if k != "rollouts"
        }
        head = bytes([0x80 + len(raw) + 1]) + msgspec.msgpack.encode(raw)[1:]
        data = head + msgspec.msgpack.encode("rollouts") + b"\x91\x81" + msgspec.msgpack.encode(before) + bomb
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_group(data)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("field", ["spans", "turns", "rewards"])
def test_the_parts_of_all_rollouts_are_bounded_together(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hora_rl.common.wire.MAX_PARTS", 2_000)
    many = {
        "spans": [[0, 0, 1]] * 1_500,
        "turns": [TWO[0]] * 1_500,
        "rewards": {str(i): 0.0 for i in range(60)},
    }
    copies = 40 if field == "rewards" else 2
    data = damaged(lambda raw: raw.update(rollouts=[raw["rollouts"][0] | {field: many[field]}] * copies))
    with pytest.raises(WireError) as refused:
        decode_group(data)
    assert "2000 spans, turns and rewards" in str(refused.value)


def test_a_text_takes_five_times_its_bytes_at_most() -> None:
    data = damaged(of_message(run="a" * 2**20 + "\U0001f600"))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=r"\$\.run"):
            decode_group(data)
        assert tracemalloc.get_traced_memory()[1] < 5.5 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("made", "field"), [*((damaged, f) for f in GROUP_FIELDS), *((damaged_extra, f) for f in EXTRA_FIELDS)]
)
@pytest.mark.parametrize("value", [nested(300), b"x" * 2**22, {"a": 2**63}], ids=["deep", "long", "map"])
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
