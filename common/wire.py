"""Groups as msgpack: plain values and little-endian buffers, with a schema version and size limits.

A group is one or two messages: the group with its Phase A rollouts, and the extra rollouts of Phase B.
Decoding creates declared fields of declared lengths alone: a hostile message takes at most five times its
size in memory, and 250 MiB for small parts. One that is oversized, malformed or inconsistent raises WireError
with the field."""

import sys
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from hora_rl.common.errors import WireError
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

SCHEMA: Literal[4] = 4
MAX_BYTES = 256 * 2**20
MAX_ROLLOUTS = 65_536
MAX_TURNS = MAX_SPANS = 4_096
MAX_PARTS = 2**20  # spans, turns and rewards of a message: four bytes each at least, 200 in memory
MAX_TEXT = 1_024
MAX_REWARDS = 64
TOKENS, LOGPROBS = np.dtype("<i4"), np.dtype("<f4")
LOWEST = np.finfo(np.float32).min

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
AnyText = Annotated[str, Meta(max_length=MAX_TEXT)]
T = TypeVar("T")


class _Rollout(Struct, omit_defaults=True):
    """One rollout on the wire. `spans` are [version, start, end], `turns` [sampled, given, anew], `origin` is
    [replica, queued, first token, done, scored]; rewards that rank the group come with Phase B."""

    tokens: bytes
    logprobs: bytes
    finish: FinishReason
    phase: Phase
    rewards: Annotated[dict[Text, Finite], Meta(max_length=MAX_REWARDS)]
    success: bool
    spans: Annotated[list[tuple[Whole, Whole, Whole]], Meta(max_length=MAX_SPANS)]
    round: Annotated[int, Meta(ge=1, le=MAX_ROLLOUTS)] = 1  # a round has at least one rollout
    turns: Annotated[list[tuple[Whole, bytes, bool]], Meta(min_length=2, max_length=MAX_TURNS)] = []
    origin: tuple[Text, Finite, Finite, Finite, Finite] | UnsetType = UNSET


Rollouts = Annotated[list[Raw], Meta(max_length=MAX_ROLLOUTS)]
"""Each is decoded alone, so that their parts are counted."""


class _Group(Struct, omit_defaults=True):
    schema: Literal[4]
    run: Text
    epoch: Whole
    prompt_index: Whole
    batch: Whole
    shard: Whole
    rule: Text
    prior: tuple[Positive, Positive]
    tokenizer: Text
    pre_rollouts: Annotated[int, Meta(ge=1, le=MAX_ROLLOUTS)]
    sampling: AnyText
    prompt: bytes
    rollouts: Rollouts
    size_as_if: Whole = 0
    source: AnyText = ""


class _Extra(Struct, omit_defaults=True):
    """Phase B of a group. `ranked` has rewards of the pre-rollouts that rank the group, by name."""

    schema: Literal[4]
    group: Text
    sampling: AnyText
    rollouts: Rollouts
    ranked: Annotated[
        dict[Text, Annotated[list[Finite], Meta(max_length=MAX_ROLLOUTS)]],
        Meta(min_length=1, max_length=MAX_REWARDS),
    ] = {}


def encode_group(group: Group) -> bytes:
    """The bytes of one group. The reader validates them."""
    message = _Group(
        schema=SCHEMA,
        run=group.run,
        epoch=group.epoch,
        prompt_index=group.prompt_index,
        batch=group.batch,
        shard=group.shard,
        rule=group.rule,
        prior=(float(group.prior[0]), float(group.prior[1])),  # of numpy otherwise
        tokenizer=group.tokenizer,
        pre_rollouts=group.pre_rollouts,
        sampling=group.sampling,
        prompt=_buffer(group.prompt_tokens, TOKENS),
        rollouts=list(map(_rollout_out, group.rollouts)),
        size_as_if=group.size_as_if,
        source=group.source,
    )
    return msgspec.msgpack.encode(message)


def encode_pre_rollouts(group: Group) -> bytes:
    """The bytes of a group with only its Phase A rollouts, without ranking rewards: a valid group."""
    first = tuple(
        replace(r, rewards={name: value for name, value in r.rewards.items() if name not in group.ranked})
        for r in group.rollouts
        if r.phase == "A"
    )
    return encode_group(replace(group, rollouts=first))


def encode_extra(group: Group) -> bytes:
    """The bytes of the group's Phase B rollouts, and of its pre-rollouts' ranking rewards, known only now."""
    first, later = ([r for r in group.rollouts if r.phase == phase] for phase in ("A", "B"))
    ranked = {name: [float(r.rewards[name]) for r in first] for name in group.ranked}
    rollouts = list(map(_rollout_out, later))
    return msgspec.msgpack.encode(_Extra(SCHEMA, group.id, group.sampling, rollouts, ranked))


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
    raw = _decoded(data, _Group, "group")
    where = f"group {raw.epoch}:{raw.prompt_index}"
    group = _group_in(raw, [_decoded(part, _Extra, where) for part in additional], where)
    if run is not None and group.run != run:
        raise WireError(f"{where}: is of run {group.run!r}, not {run!r}")
    if tokenizer is not None and group.tokenizer != tokenizer:
        raise WireError(f"{where}: was written with tokenizer {group.tokenizer!r}, not {tokenizer!r}")
    between = (turn.context for r in group.rollouts for turn in r.turns)
    end = 2**31 if vocabulary is None else vocabulary
    for tokens in (group.prompt_tokens, *(r.tokens for r in group.rollouts), *between):
        # A negative id read as unsigned exceeds every vocabulary.
        if len(tokens) and (largest := int(tokens.view(np.uint32).max())) >= end:
            raise WireError(f"{where}: a token id is outside the vocabulary of {vocabulary}: {largest}")
    return group


def _rollout_out(r: Rollout) -> Raw:
    message = _Rollout(
        tokens=_buffer(r.tokens, TOKENS),
        logprobs=_buffer(r.logprobs, LOGPROBS),
        finish=r.finish_reason,
        phase=r.phase,
        rewards={name: float(value) for name, value in r.rewards.items()},
        success=r.success,
        spans=[(s.version, s.start, s.end) for s in r.spans],
        round=max(1, r.round),
        turns=[(t.sampled, _buffer(t.context, TOKENS), t.anew) for t in r.turns],
        origin=UNSET if r.origin is None else astuple(r.origin),
    )
    return Raw(msgspec.msgpack.encode(message))


def _buffer(array: Tokens | LogProbs, dtype: np.dtype) -> bytes:
    return np.asarray(array, dtype=dtype).tobytes()


def _decoded(data: bytes | Raw, kind: type[T], where: str) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        old = ": use one version of hora in all parts" if "schema`" in str(error) else ""
        raise WireError(f"{where}: {error}"[:200] + old) from None


def _rollouts_in(messages: Sequence[Raw], where: str) -> list[_Rollout]:
    rollouts, parts = list[_Rollout](), 0
    for number, message in enumerate(messages):
        rollouts.append(raw := _decoded(message, _Rollout, f"{where} rollout {number}"))
        parts += len(raw.spans) + len(raw.turns) + len(raw.rewards)
        if parts > MAX_PARTS:
            raise WireError(f"{where}: more than {MAX_PARTS} spans, turns and rewards")
    return rollouts


def _group_in(raw: _Group, extra: Sequence[_Extra], where: str) -> Group:
    for part in extra:
        if part.group != where.removeprefix("group "):
            raise WireError(f"{where}: its extra rollouts are of group {part.group!r:.60}")
        if part.sampling != raw.sampling:
            raise WireError(f"{where}: its extra rollouts were drawn to other pre-rollouts")
    rollouts = _rollouts_in([*raw.rollouts, *(r for part in extra for r in part.rollouts)], where)
    if not raw.pre_rollouts <= len(rollouts) <= MAX_ROLLOUTS:
        sizes = f"{len(rollouts)} rollouts, G0 = {raw.pre_rollouts}"
        raise WireError(f"{where}: {sizes}: 1 <= G0 <= G_i <= {MAX_ROLLOUTS} is needed")
    if sum(r.phase == "A" for r in rollouts) != raw.pre_rollouts:
        raise WireError(f"{where}: must hold exactly G0 = {raw.pre_rollouts} rollouts of Phase A")
    ranks = {name: values for part in extra for name, values in part.ranked.items()}
    for name, values in ranks.items():
        if len(values) != raw.pre_rollouts:
            raise WireError(
                f"{where}: reward {name!r:.40} ranks not all {raw.pre_rollouts} of its pre-rollouts"
            )
        first = (r for r in rollouts if r.phase == "A")
        for rollout, value in zip(first, values, strict=True):
            rollout.rewards[name] = value
    prompt = _array(raw.prompt, "prompt", TOKENS, where)
    if not len(prompt):
        raise WireError(f"{where}: the prompt is empty")
    same = msgspec.structs.asdict(raw)
    for name in ("schema", "prompt", "rollouts"):
        del same[name]
    made = tuple(_rollout_in(r, f"{where} rollout {i}") for i, r in enumerate(rollouts))
    return Group(**same, prompt_tokens=prompt, ranked=tuple(ranks), rollouts=made)


def _rollout_in(raw: _Rollout, where: str) -> Rollout:
    tokens = _array(raw.tokens, "tokens", TOKENS, where)
    logprobs = _array(raw.logprobs, "logprobs", LOGPROBS, where)
    if not len(tokens):
        raise WireError(f"{where}: no tokens")
    if len(logprobs) != len(tokens):
        raise WireError(f"{where}: {len(logprobs)} log-probs for {len(tokens)} tokens")
    if not (logprobs.min() >= LOWEST and logprobs.max() <= 0):  # both are NaN if any value is
        raise WireError(f"{where}: log-probs must be finite and at most 0")
    return Rollout(
        tokens=tokens,
        logprobs=logprobs,
        finish_reason=raw.finish,
        spans=_spans(raw.spans, len(tokens), where),
        phase=raw.phase,
        rewards=raw.rewards,
        success=raw.success,
        round=raw.round if raw.phase == "B" else 0,
        turns=_turns(raw.turns, len(tokens), where) if raw.turns else (),
        origin=None if raw.origin is UNSET else Origin(*raw.origin),
    )


def _turns(raw: Sequence[tuple[int, bytes, bool]], length: int, where: str) -> tuple[Turn, ...]:
    turns = tuple(Turn(n, _array(between, "turns", TOKENS, where), anew) for n, between, anew in raw)
    for number, turn in enumerate(turns):
        if not turn.sampled or (turn.anew and not len(turn.context)):
            missing = "context" if turn.sampled else "sampled token"
            raise WireError(f"{where}: turn {number} has no {missing}")
    if sum(turn.sampled for turn in turns) != length:
        raise WireError(f"{where}: turns cover {sum(t.sampled for t in turns)} of {length} tokens")
    if len(turns[0].context) or turns[0].anew:
        raise WireError(f"{where}: the first of its turns must follow the prompt")
    return turns


def _spans(raw: Sequence[tuple[int, int, int]], length: int, where: str) -> tuple[VersionSpan, ...]:
    at, newest = 0, 0
    for version, start, end in raw:
        if start != at or end <= start or version < newest:
            raise WireError(
                f"{where}: spans must follow each other, versions never falling: not version {version} from "
                f"{start} to {end} after version {newest} up to {at}"
            )
        at, newest = end, version
    if at != length:
        raise WireError(f"{where}: spans cover {at} of {length} tokens")
    return tuple(VersionSpan(*span) for span in raw)


def _array(raw: bytes, field: str, dtype: np.dtype, where: str) -> np.ndarray:
    if len(raw) % dtype.itemsize:
        raise WireError(f"{where}: {field} must be a buffer of {dtype.itemsize}-byte values")
    return np.frombuffer(raw, dtype=dtype).astype(dtype.newbyteorder("="), copy=False)
