"""The data that flows through the system. Frozen dataclasses, validated when they are decoded.

    Prompt ──generate──► Completion ──score──► Rollout ──assemble──► Group ──queue──► learner

Shapes: a completion of L tokens has `tokens` (L,) int32, `logprobs` (L,) float32 and version spans that
partition [0, L). The group of prompt i has G_i = G0 + Δ_i rollouts (paper, section 3.2)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Phase = Literal["A", "B"]
FinishReason = Literal["stop", "length"]
Tokens = NDArray[np.int32]
LogProbs = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One row of a data set, rendered for the model. `index` is its row, stable over epochs and restarts.
    `answer` is the gold answer: text or any JSON value. `prefill` is the opening of the thought that the
    template wrote at its end; completions are judged with it prepended. `row` is the original row, for user
    rewards; `reads_row`: rewards may read more of the row than the answer. `source` names its data set if the
    run has several. `messages` are the row's, if it has a conversation; `text` is its last turn of the
    user."""

    index: int
    text: str
    answer: Any
    tokens: Tokens
    prefill: str = ""
    row: Mapping[str, object] = field(default_factory=dict)
    source: str = ""
    reads_row: bool = False
    messages: tuple[Mapping[str, object], ...] = ()

    @property
    def judged_by(self) -> object:
        """Reference data for fingerprints: the gold answer, or the row, which may hold tests."""
        return dict(self.row) if self.reads_row or self.answer is None else self.answer


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Weight version `version` sampled tokens `start` (inclusive) to `end` (exclusive)."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where and when a completion was sampled: the replica's name and times in seconds since the epoch.
    `queued`: the replica received the request; `first_token`, `done`: first and last token; `scored`: rewards
    arrived (coordinator's clock; 0 before)."""

    replica: str
    queued: float
    first_token: float
    done: float
    scored: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One turn of a rollout with several: `sampled` counts its tokens, which follow those of earlier turns in
    `tokens`. `context` (M,) precedes them and is not trained on. It continues the previous turn's sequence,
    or with `anew` is the full context of a new sequence."""

    sampled: int
    context: Tokens
    anew: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled answer. `logprobs[t]` is log π_gen(token t | before) at the sampling temperature.

    In an episode of several turns, `tokens` are all sampled tokens in order, `turns` hold the tokens between
    them, and `text` is the last turn's. `rewards` come from the environment, by name."""

    text: str
    tokens: Tokens
    logprobs: LogProbs
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    origin: Origin | None = None
    turns: tuple[Turn, ...] = ()
    rewards: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """Permanent failure to sample completions; do not retry."""

    reason: str


@dataclass(frozen=True, slots=True)
class Scored:
    """The judgement of a completion: rewards by name (each finite) and success bit (`reward.success`)."""

    rewards: dict[str, float]
    success: bool


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """A completion with its rewards by name (each finite). `success` is the bit that Phase A counts
    (`reward.success`). `round` is its round of Phase B, from 1; 0 in Phase A.

    `tokens`, `logprobs` and `spans` cover only sampled tokens. `turns` is empty for a single turn; otherwise
    there are at least two, the first follows the prompt, and their `sampled` sum to the number of tokens."""

    tokens: Tokens
    logprobs: LogProbs
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]
    phase: Phase
    rewards: dict[str, float]
    success: bool
    round: int = 1
    origin: Origin | None = None
    turns: tuple[Turn, ...] = ()

    @property
    def context_tokens(self) -> int:
        """Number of tokens between its turns that were not sampled."""
        return sum(len(turn.context) for turn in self.turns)


def group_id(epoch: int, prompt_index: int) -> str:
    """The permanent name of a group: the pair occurs once in a run."""
    return f"{epoch}:{prompt_index}"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """All rollouts of one prompt in one batch: the unit that is queued, trained and audited.

    `id` is (epoch, prompt index), unique in a run. `batch` and `shard` name the budget it was allocated from;
    `rule` and `prior` ((α0, β0) of this prompt) determined Δ_i. `tokenizer` is the fingerprint of the
    vocabulary. `sampling` identifies the Phase A draw that Δ was computed from: a draw may be repeated, and
    extra rollouts belong to one draw. `size_as_if` is the size under `learner.objective.group_weight.as_if`,
    0 without that rule. `source` is the prompt's. `ranked` names the rewards that compare rollouts of a
    complete group."""

    run: str
    epoch: int
    prompt_index: int
    batch: int
    shard: int
    rule: str
    prior: tuple[float, float]
    tokenizer: str
    pre_rollouts: int
    prompt_tokens: Tokens
    rollouts: tuple[Rollout, ...]
    sampling: str = ""
    size_as_if: int = 0
    source: str = ""
    ranked: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return group_id(self.epoch, self.prompt_index)

    @property
    def size(self) -> int:
        """G_i = G0 + Δ_i."""
        return len(self.rollouts)

    @property
    def extra(self) -> int:
        """Δ_i, the number of Phase B rollouts."""
        return self.size - self.pre_rollouts

    @property
    def successes(self) -> int:
        """c_i: successful pre-rollouts (the observation in equation 2)."""
        return sum(r.success for r in self.rollouts if r.phase == "A")

    @property
    def rounds(self) -> tuple[int, ...]:
        """Number of rollouts in each round of Phase B, up to the last non-empty one; they sum to Δ_i."""
        drawn = Counter(r.round for r in self.rollouts if r.phase == "B")
        return tuple(drawn[number] for number in range(1, max(drawn, default=0) + 1))

    @property
    def round_hits(self) -> tuple[int, ...]:
        """Successful rollouts in each of `rounds`."""
        hits = Counter(r.round for r in self.rollouts if r.success and r.phase == "B")
        return tuple(hits[number] for number in range(1, len(self.rounds) + 1))

    @property
    def hits(self) -> int:
        """Successful rollouts in both phases."""
        return sum(r.success for r in self.rollouts)

    @property
    def tokens(self) -> int:
        return sum(len(r.tokens) for r in self.rollouts)

    @property
    def versions(self) -> tuple[int, int]:
        seen = [s.version for r in self.rollouts for s in r.spans]
        return min(seen), max(seen)

    @property
    def mixed_phases(self) -> bool:
        """Whether Phase B used other weights than Phase A, unlike Algorithm 1; never at `max_staleness` 0."""
        phases: dict[Phase, set[int]] = {}
        for r in self.rollouts:
            phases.setdefault(r.phase, set()).update(s.version for s in r.spans)
        return len(phases) == 2 and phases["A"] != phases["B"]


BELOW_TRAINING = 2**40
"""Priority after all training rollouts, with a few places per replica."""
AFTER_TRAINING = BELOW_TRAINING - 1
"""Priority after all training rollouts, with as many places as they have."""


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """A request for `n` completions of one prompt. `seed` makes a retry draw the same samples from the same
    weights. An engine serves the lowest `priority` first. `max_tokens` bounds each completion below
    rollout.max_response_tokens; 0: no bound. `truncation` is `Evaluation.truncation`; training has none."""

    prompt: Prompt
    n: int
    seed: int
    priority: int = 0
    max_tokens: int = 0
    truncation: Mapping[str, float] = field(default_factory=dict, hash=False)
