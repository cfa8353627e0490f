"""Groups as msgpack: plain values and little-endian buffers, with a schema version and size limits.

A group is one or two messages: the group with its Phase A rollouts, and the extra rollouts of Phase B.
Decoding never executes data. An oversized, malformed or inconsistent message raises WireError with the field
and, if readable, the group's id."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import msgpack
import numpy as np

from hora_rl.common.errors import WireError
from hora_rl.common.msgpack_count import count_objects
from hora_rl.common.types import (
    FinishReason,
    Group,
    LogProbs,
    Origin,
    Phase,
    Rollout,
    Tokens,
    Turn,
    VersionSpan,
)

SCHEMA = 4
MAX_BYTES = 256 * 2**20
MAX_OBJECTS = 4 * 2**20  # per message: below 400 MiB in memory; 256 MiB of empty maps would be 20 GiB
MAX_ROLLOUTS = 65_536
MAX_TURNS = 4_096
MAX_TEXT = 1_024
MAX_REWARDS = 64
TOKENS, LOGPROBS = np.dtype("<i4"), np.dtype("<f4")
LOWEST = np.finfo(np.float32).min


def encode_group(group: Group) -> bytes:
    """The bytes of one group. The reader validates them."""
    return _pack(_group_out(group), group.rollouts)


def encode_pre_rollouts(group: Group) -> bytes:
    """The bytes of a group with only its Phase A rollouts, without ranking rewards: a valid group."""
    first = tuple(
        replace(r, rewards={name: value for name, value in r.rewards.items() if name not in group.ranked})
        for r in group.rollouts
        if r.phase == "A"
    )
    return encode_group(replace(group, rollouts=first))


def encode_extra(group: Group) -> bytes:
    """The bytes of the group's Phase B rollouts, and of the ranking rewards of its pre-rollouts, which were
    stored before the group was ranked."""
    first, later = ([r for r in group.rollouts if r.phase == phase] for phase in ("A", "B"))
    ranked = {name: [float(r.rewards[name]) for r in first] for name in group.ranked}
    value = {
        "schema": SCHEMA,
        "group": group.id,
        "sampling": group.sampling,
        "rollouts": [_rollout_out(r) for r in later],
        **({"ranked": ranked} if ranked else {}),
    }
    return _pack(value, later)


def decode_group(
    data: bytes,
    *additional: bytes,
    run: str | None = None,
    tokenizer: str | None = None,
    vocabulary: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> Group:
    """The group in `data`, with the rollouts in each of `additional`. `run`, `tokenizer` and `vocabulary`, if
    given, must match the group; `max_bytes` bounds all messages together.

    Raises WireError for anything a learner cannot train on."""
    size = len(data) + sum(map(len, additional))
    if size > max_bytes:
        raise WireError(f"message of {size} bytes exceeds the limit of {max_bytes}")
    raw, *parts = map(_unpack, (data, *additional))
    epoch, index = _int(raw.get("epoch"), "epoch"), _int(raw.get("prompt_index"), "prompt_index")
    where = f"group {epoch}:{index}"
    group = _group_in(raw, epoch, index, [r for part in parts for r in _additional(part, raw, where)], where)
    for ranks in (part["ranked"] for part in parts if "ranked" in part):
        group = _with_ranks(group, ranks, where)
    if run is not None and group.run != run:
        raise WireError(f"{where}: is of run {group.run!r}, not {run!r}")
    if tokenizer is not None and group.tokenizer != tokenizer:
        raise WireError(f"{where}: was written with tokenizer {group.tokenizer!r}, not {tokenizer!r}")
    if sum(r.phase == "A" for r in group.rollouts) != group.pre_rollouts:
        raise WireError(f"{where}: must hold exactly G0 = {group.pre_rollouts} rollouts of Phase A")
    given = (turn.given for r in group.rollouts for turn in r.turns)
    end = 2**31 if vocabulary is None else vocabulary
    for tokens in (group.prompt_tokens, *(r.tokens for r in group.rollouts), *given):
        # A negative id read as unsigned exceeds every vocabulary.
        if len(tokens) and int(tokens.view(np.uint32).max()) >= end:
            raise WireError(f"{where}: a token id is outside the vocabulary of {vocabulary}")
    return group


def _pack(value: dict[str, object], rollouts: Sequence[Rollout]) -> bytes:
    # Allocate once: a growing buffer is copied each time.
    room = 4096 + sum(9 * len(r.tokens) + 512 for r in rollouts)
    room += sum(4 * len(turn.given) + 24 for r in rollouts for turn in r.turns)
    return cast(bytes, msgpack.packb(value, use_bin_type=True, buf_size=room))


def _unpack(data: bytes) -> dict[str, object]:
    # Every object takes at least one byte, so short messages need no count.
    if len(data) > MAX_OBJECTS and count_objects(data, MAX_OBJECTS) > MAX_OBJECTS:
        raise WireError(f"message of {len(data)} bytes holds more than {MAX_OBJECTS} objects")
    try:
        # unpackb limits every length to that of the message. Lists are allocated before they are read, and
        # one wide character makes a text take four times the memory.
        limits = {"max_array_len": MAX_ROLLOUTS, "max_str_len": 4 * MAX_TEXT}
        raw = msgpack.unpackb(data, raw=False, strict_map_key=True, **limits)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"not a message: {type(error).__name__}: {error}"[:300]) from None
    if not isinstance(raw, dict):
        raise WireError(f"not a message: a {type(raw).__name__}, not a map")
    if raw.get("schema") != SCHEMA:
        raise WireError(
            f"schema version {_shown(raw.get('schema'))}, this reader knows {SCHEMA}: use one version of "
            "hora for all parts of a run"
        )
    return raw


def _group_out(g: Group) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "run": g.run,
        "epoch": g.epoch,
        "prompt_index": g.prompt_index,
        "batch": g.batch,
        "shard": g.shard,
        "rule": g.rule,
        "prior": list(g.prior),
        "tokenizer": g.tokenizer,
        "pre_rollouts": g.pre_rollouts,
        "sampling": g.sampling,
        "size_as_if": g.size_as_if,
        **({"source": g.source} if g.source else {}),
        "prompt": _buffer(g.prompt_tokens, TOKENS),
        "rollouts": [_rollout_out(r) for r in g.rollouts],
    }


def _rollout_out(r: Rollout) -> dict[str, object]:
    out: dict[str, object] = {
        "tokens": _buffer(r.tokens, TOKENS),
        "logprobs": _buffer(r.logprobs, LOGPROBS),
        "finish": r.finish_reason,
        "phase": r.phase,
        "rewards": {name: float(value) for name, value in r.rewards.items()},
        "success": r.success,
        "spans": [[s.version, s.start, s.end] for s in r.spans],
    }
    if r.round > 1:
        out["round"] = r.round
    if r.turns:
        out["turns"] = [[t.sampled, _buffer(t.given, TOKENS), t.anew] for t in r.turns]
    if (o := r.origin) is not None:
        out["origin"] = [o.replica, o.queued, o.first_token, o.done, o.scored]
    return out


def _with_ranks(group: Group, raw: object, where: str) -> Group:
    """`group` with the ranking rewards of its pre-rollouts."""
    first = [r for r in group.rollouts if r.phase == "A"]
    if not isinstance(raw, dict) or not 1 <= len(raw) <= MAX_REWARDS:
        raise WireError(f"{where}: ranked must be 1 to {MAX_REWARDS} lists by name, not {_shown(raw)}")
    for name, values in raw.items():
        if not isinstance(values, list) or len(values) != len(first):
            raise WireError(f"{where}: reward {name!r:.40} ranks not all {len(first)} of its pre-rollouts")
        first = [
            replace(r, rewards={**r.rewards, **_rewards({name: value}, where)})
            for r, value in zip(first, values, strict=True)
        ]
    later = (r for r in group.rollouts if r.phase != "A")
    return replace(group, rollouts=(*first, *later), ranked=tuple(raw))


def _buffer(array: Tokens | LogProbs, dtype: np.dtype) -> memoryview:
    return np.ascontiguousarray(array, dtype=dtype).data


def _additional(raw: dict[str, object], group: dict[str, object], where: str) -> list[object]:
    if raw.get("group") != where.removeprefix("group "):
        raise WireError(f"{where}: its extra rollouts are of group {_shown(raw.get('group'))}")
    if _text(raw.get("sampling"), "sampling", where, least=0) != group.get("sampling"):
        raise WireError(f"{where}: its extra rollouts were drawn to other pre-rollouts")
    return _list(raw, "rollouts", where)


def _group_in(raw: dict[str, object], epoch: int, index: int, additional: list[object], where: str) -> Group:
    rollouts = _list(raw, "rollouts", where) + additional
    prior = [_float(p, "prior", where) for p in _list(raw, "prior", where)[:3]]
    pre_rollouts = _int(raw.get("pre_rollouts"), "pre_rollouts", where)
    prompt = _tokens(raw.get("prompt"), "prompt", where)
    if len(prior) != 2 or not all(p > 0 for p in prior):
        raise WireError(f"{where}: prior must be two positive numbers, not {prior}")
    if not 1 <= pre_rollouts <= len(rollouts) or len(rollouts) > MAX_ROLLOUTS:
        sizes = f"{len(rollouts)} rollouts, G0 = {pre_rollouts}"
        raise WireError(f"{where}: {sizes}: 1 <= G0 <= G_i <= {MAX_ROLLOUTS} is needed")
    if not len(prompt):
        raise WireError(f"{where}: the prompt is empty")
    return Group(
        run=_text(raw.get("run"), "run", where),
        epoch=epoch,
        prompt_index=index,
        batch=_int(raw.get("batch"), "batch", where),
        shard=_int(raw.get("shard"), "shard", where),
        rule=_text(raw.get("rule"), "rule", where),
        prior=(prior[0], prior[1]),
        tokenizer=_text(raw.get("tokenizer"), "tokenizer", where),
        pre_rollouts=pre_rollouts,
        prompt_tokens=prompt,
        sampling=_text(raw.get("sampling"), "sampling", where, least=0),
        size_as_if=_int(raw.get("size_as_if", 0), "size_as_if", where),
        source=_text(raw.get("source", ""), "source", where, least=0),
        rollouts=tuple(_rollout_in(r, f"{where} rollout {i}") for i, r in enumerate(rollouts)),
    )


def _rollout_in(raw: object, where: str) -> Rollout:
    if not isinstance(raw, dict):
        raise WireError(f"{where}: a {type(raw).__name__}, not a map")
    tokens = _tokens(raw.get("tokens"), "tokens", where)
    logprobs = _array(raw.get("logprobs"), "logprobs", LOGPROBS, where).astype(np.float32, copy=False)
    if not len(tokens):
        raise WireError(f"{where}: no tokens")
    if len(logprobs) != len(tokens):
        raise WireError(f"{where}: {len(logprobs)} log-probs for {len(tokens)} tokens")
    if not (logprobs.min() >= LOWEST and logprobs.max() <= 0):  # both are NaN if any value is
        raise WireError(f"{where}: log-probs must be finite and at most 0")
    phase = cast(Phase, _one_of(raw.get("phase"), ("A", "B"), "phase", where))
    return Rollout(
        tokens=tokens,
        logprobs=logprobs,
        finish_reason=cast(FinishReason, _one_of(raw.get("finish"), ("stop", "length"), "finish", where)),
        spans=_spans(_list(raw, "spans", where), len(tokens), where),
        phase=phase,
        rewards=_rewards(raw.get("rewards"), where, least=0),  # ranking rewards come with Phase B
        success=_flag(raw.get("success"), "success", where),
        round=_round(raw.get("round", 1), where) if phase == "B" else 0,
        turns=_turns(_list(raw, "turns", where), len(tokens), where) if "turns" in raw else (),
        origin=_origin(raw["origin"], where) if "origin" in raw else None,
    )


def _turns(raw: list[object], length: int, where: str) -> tuple[Turn, ...]:
    if not 2 <= len(raw) <= MAX_TURNS:
        raise WireError(f"{where}: turns must be 2 to {MAX_TURNS}, or not there, not {len(raw)}")
    turns = tuple(_turn(item, i, where) for i, item in enumerate(raw))
    if sum(turn.sampled for turn in turns) != length:
        raise WireError(f"{where}: turns cover {sum(t.sampled for t in turns)} of {length} tokens")
    if len(turns[0].given) or turns[0].anew:
        raise WireError(f"{where}: the first of its turns must follow the prompt")
    return turns


def _turn(raw: object, number: int, where: str) -> Turn:
    if not isinstance(raw, list) or len(raw) != 3:
        raise WireError(f"{where}: turns must be [sampled, given, anew]")
    sampled, anew = _int(raw[0], "turns", where), _flag(raw[2], "turns", where)
    given = _tokens(raw[1], "turns", where)
    if not sampled or (anew and not len(given)):
        raise WireError(f"{where}: turn {number} has no {'context' if sampled else 'sampled token'}")
    return Turn(sampled, given, anew)


def _origin(raw: object, where: str) -> Origin:
    if not isinstance(raw, list) or len(raw) != 5:
        raise WireError(f"{where}: origin must be [replica, queued, first token, done, scored]")
    queued, first_token, done, scored = (_float(value, "origin", where) for value in raw[1:])
    return Origin(_text(raw[0], "origin", where), queued, first_token, done, scored)


def _round(value: object, where: str) -> int:
    number = _int(value, "round", where)
    if not 1 <= number <= MAX_ROLLOUTS:  # a round has at least one rollout
        raise WireError(f"{where}: round must be in 1..{MAX_ROLLOUTS}, not {number}")
    return number


def _spans(raw: list[object], length: int, where: str) -> tuple[VersionSpan, ...]:
    spans, at, newest = [], 0, 0
    for item in raw:
        if not isinstance(item, list) or len(item) != 3:
            raise WireError(f"{where}: spans must be [version, start, end]")
        version, start, end = (_int(value, "spans", where) for value in item)
        if start != at or end <= start or version < newest:
            raise WireError(
                f"{where}: spans must follow each other, versions never falling: not version {version} from "
                f"{start} to {end} after version {newest} up to {at}"
            )
        spans.append(VersionSpan(version, start, end))
        at, newest = end, version
    if at != length:
        raise WireError(f"{where}: spans cover {at} of {length} tokens")
    return tuple(spans)


def _rewards(raw: object, where: str, least: int = 1) -> dict[str, float]:
    if not isinstance(raw, dict) or not least <= len(raw) <= MAX_REWARDS:
        wanted = f"{least} to {MAX_REWARDS} values by name"
        raise WireError(f"{where}: rewards must be {wanted}, not {_shown(raw)}")
    return {
        _text(name, "rewards", where): _float(value, f"reward {name!r:.40}", where)
        for name, value in raw.items()
    }


def _array(raw: object, field: str, dtype: np.dtype, where: str) -> np.ndarray:
    if not isinstance(raw, bytes) or len(raw) % dtype.itemsize:
        raise WireError(f"{where}: {field} must be a buffer of {dtype.itemsize}-byte values")
    return np.frombuffer(raw, dtype=dtype)


def _tokens(raw: object, field: str, where: str) -> Tokens:
    return _array(raw, field, TOKENS, where).astype(np.int32, copy=False)


def _int(value: object, field: str, where: str = "group") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise WireError(f"{where}: {field} must be a whole number from 0, not {_shown(value)}")
    return value


def _float(value: object, field: str, where: str) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool) or not math.isfinite(value):
        raise WireError(f"{where}: {field} must be a finite number, not {_shown(value)}")
    return value


def _text(value: object, field: str, where: str, least: int = 1) -> str:
    if not isinstance(value, str) or not least <= len(value) <= MAX_TEXT:
        wanted = f"text of {least} to {MAX_TEXT} characters"
        raise WireError(f"{where}: {field} must be {wanted}, not {_shown(value)}")
    return value


def _list(raw: dict[str, object], field: str, where: str) -> list[object]:
    value = raw.get(field)
    if not isinstance(value, list):
        raise WireError(f"{where}: {field} must be a list, not {_shown(value)}")
    return value


def _flag(value: object, field: str, where: str) -> bool:
    if not isinstance(value, bool):
        raise WireError(f"{where}: {field} must be true or false, not {_shown(value)}")
    return value


def _one_of(value: object, known: tuple[str, ...], field: str, where: str) -> str:
    if value not in known:
        raise WireError(f"{where}: {field} must be {' or '.join(known)}, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """A value for an error message. Long or nested values are not formatted: decoding would be faster."""
    if isinstance(value, str):
        return repr(value[:60])
    return repr(value) if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"
