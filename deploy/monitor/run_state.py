"""State of one run at one moment, which every view shows (`reading.py` reads it), with the side that idles
and the split of cards that would balance the run.

In a step of P seconds the learner works for P minus its wait, and the generators while they have requests.
The model assumes that a side's work divides evenly over its n cards (on CPU: threads): the side takes work /
n seconds, and the slower side determines the step."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from hora_rl.common.config import GeneratorConfig, LearnerConfig
from hora_rl.common.live.telemetry import SILENT_S, TELEMETRY, PartBeat
from hora_rl.evaluation.phase_b import Share

LEAST_STEPS, LEAST_S = 2, 10.0
"""Minimal number and duration of steps, because generators are sampled once a second."""
WINDOW = 16
"""Number of newest steps to use."""
KEPT = 2 * WINDOW
"""Steps that `balance` needs: it replays its decision over them."""
IDLES, BUSY = 0.25, 0.15
"""A side counts as idle above the first share of its time, until the share falls below the second."""
GAIN = 0.1
"""Minimal relative gain in step time for a suggestion."""

Metrics = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Split:
    """A division between generators and learner: keys, values, and cards or threads per unit of a value."""

    keys: tuple[str, str]
    values: tuple[int, int]
    each: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Balance:
    """The idle side (`learner` or `generators`), and the idle share of both; None if unknown for generators.
    `step` is in seconds. `split` would balance the run and shorten a step to `factor` of its time; None if no
    split helps."""

    side: str
    learner: float
    generators: float | None
    step: float
    split: Split | None = None
    factor: float = 1.0

    @property
    def says(self) -> str:
        """`learner waits 40% of its time (4.0 of 10.0 s)`."""
        if self.side == "learner":
            seconds = f"{self.learner * self.step:.1f} of {self.step:.1f} s a step"
            return f"learner waits {self.learner:.0%} of its time ({seconds})"
        return f"generators idle {self.generators or 0.0:.0%} of their time"

    @property
    def remedy(self) -> str:
        """`generator.replicas 3 and learner.workers 5 would balance them …`, or empty."""
        if self.split is None:
            return ""
        pairs = zip(self.split.keys, self.split.values, strict=True)
        return (
            f"{' and '.join(f'{key} {value}' for key, value in pairs)} would balance them, with steps of "
            f"about {self.factor * self.step:.1f} s"
        )


def split_of(generator: GeneratorConfig, learner: LearnerConfig, device: str) -> Split | None:
    """The split of a run on the learner's `device` (a GPU's name, `cpu`, or empty if unknown). None if both
    sides share one card."""
    if device == "cpu":
        values = (generator.threads, learner.threads)
        return Split(("generator.threads", "learner.threads"), values, (generator.replicas, learner.workers))
    if not device or min(generator.gpus or 1.0, learner.gpus or 1.0) < 1.0:
        return None
    values, each = (generator.replicas, learner.workers), (generator.tensor_parallel, 1)
    return Split(("generator.replicas", "learner.workers"), values, each)


def balance(steps: Sequence[Metrics], total: int, staleness: int, split: Split | None) -> Balance | None:
    """The balance over records of the newest of `total` steps, oldest first, without the first, which
    includes the start, and the last ones, which have nothing left to generate. None if neither side idles, or
    if they take turns (`rollout.max_staleness` 0)."""
    if staleness == 0:
        return None
    end = total - staleness - 1
    counted = [s for s in steps if 0 < (s.get("step") or 0) < end and s.get("time/step")]
    newest: Balance | None = None
    for n in range(LEAST_STEPS, len(counted) + 1):
        newest = _of(counted[max(0, n - WINDOW) : n], newest)
    return newest and _with_split(newest, split)


def _of(steps: Sequence[Metrics], before: Balance | None) -> Balance | None:
    """The balance of these steps, given the balance of the previous ones for hysteresis."""
    seconds = [s["time/step"] or 0.0 for s in steps]
    if sum(seconds) < LEAST_S:
        return None
    # The median ignores a single step that waits for an operator or an evaluation.
    learner = statistics.median((s.get("time/wait") or 0.0) / t for s, t in zip(steps, seconds, strict=True))
    idle = [(s.get("generators/idle"), t) for s, t in zip(steps, seconds, strict=True)]
    known = [(share, t) for share, t in idle if share is not None]
    generators = sum(share * t for share, t in known) / sum(t for _, t in known) if known else None
    shares = {"learner": learner, "generators": generators or 0.0}
    side = max(shares, key=lambda name: shares[name])
    if shares[side] < (BUSY if before and before.side == side else IDLES):
        return None
    return Balance(side, learner, generators, statistics.median(seconds))


def _with_split(uneven: Balance, now: Split | None) -> Balance:
    if now is None or uneven.generators is None or min(uneven.learner, uneven.generators) >= IDLES:
        return uneven  # if both wait, another part is slow
    total = sum(value * each for value, each in zip(now.values, now.each, strict=True))
    work = (
        now.values[0] * now.each[0] * (1.0 - uneven.generators),
        now.values[1] * now.each[1] * (1.0 - uneven.learner),
    )

    def took(values: tuple[int, int]) -> float:
        return max(w / (v * each) for w, v, each in zip(work, values, now.each, strict=True))

    counts = range(1, (total - now.each[1]) // now.each[0] + 1)
    best = min(((n, (total - n * now.each[0]) // now.each[1]) for n in counts), key=took, default=now.values)
    factor = took(best) / took(now.values)
    if factor > 1.0 - GAIN:
        return uneven
    return replace(uneven, split=replace(now, values=best), factor=factor)


class Kind(StrEnum):
    STOPPED = "stopped"
    PAUSED = "paused"
    OTHER_VERSION = "other_version"
    WEIGHTS_DISAGREE = "weights_disagree"
    UNPLACED = "unplaced"
    REDIS_FULL = "redis_full"
    NOT_ALIVE = "not_alive"
    SILENT = "silent"
    LEARNER_STARVING = "learner_starving"
    GENERATORS_IDLE = "generators_idle"
    DEAD_LETTERS = "dead_letters"
    REPLICA_BEHIND = "replica_behind"
    STALLED = "stalled"
    STARTING = "starting"
    NOTICE = "notice"
    REWARD_AWAY = "reward_away"
    GATE_SHUT = "gate_shut"
    NO_HIT = "no_hit"
    NO_SIGNAL = "no_signal"
    EVALUATION_LATE = "evaluation_late"
    CUT = "cut"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class Warning:
    """One warning: its kind for programs, its text for people."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Part:
    """A replica, coordinator or learner rank: kind, name, seconds since the last heartbeat, and that
    heartbeat."""

    kind: str
    name: str
    silent_s: float
    state: PartBeat

    @property
    def alive(self) -> bool:
        return self.silent_s < SILENT_S

    def behind(self, version: int) -> int:
        return version - self.state.get("version", 0)


@dataclass(frozen=True, slots=True)
class Gate:
    """The closed warm-up gate. It opens after `cycles` consecutive batches with a mean `reward` of at least
    `needs`. `seen` batches were observed; the newest had `mean` (None before the first)."""

    reward: str
    needs: float
    cycles: int
    seen: int
    mean: float | None


@dataclass(frozen=True, slots=True)
class RunState:
    """State of one run at one moment. Rates are per second over the last minute; ages are in seconds.

    `status` is running, paused, finished or stopped (by the error in `error`). `step` of `steps` optimizer
    steps are done, the last one `last_step_s` ago (None before the first). `idle_s` counts from the last
    step, the learner's start or the end of a pause, whichever was last (None without a learner). `resting`:
    the prompts that rest (None where none may). `controls`:
    whether a token for pause and resume exists. `gate`: the warm-up gate if closed. `balance`: the idle side,
    if any. `moved`: the last update that moved the policy too far, among the newest steps. `unplaced`: parts
    that Ray cannot place. `redis_full`: memory of a Redis at its limit. `phase_a[c]` prompts had c of
    `pre_rollouts` correct and got `phase_b[c]` rollouts, over the cycles that `evaluation.phase_b` counts.
    `shares` holds the shares per c. `evaluations[v]` holds pass@k by name for weight version v.
    """

    run: str
    time: float
    status: str
    steps: int
    step: int
    last_step_s: float | None
    idle_s: float | None
    version: int
    max_staleness: int
    paused: bool
    controls: bool
    unplaced: str
    redis_full: str
    error: str | None
    rule: str
    warm_up: bool
    gate: Gate | None
    resting: int | None
    prompts_per_batch: int
    group_size: int
    max_response_tokens: int
    pre_rollouts: int
    queue_depth: int
    queue_capacity: int
    dead_letters: int
    rates: dict[str, float]
    totals: dict[str, int]
    lag: dict[str, float]
    phase_a: dict[int, int]
    phase_b: dict[int, int]
    shares: tuple[Share, ...]
    learner: dict[str, float | None]
    balance: Balance | None
    moved: str
    evaluations: dict[int, dict[str, float]]
    parts: tuple[Part, ...]
    warnings: tuple[Warning, ...] = ()
    telemetry: int = TELEMETRY

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @property
    def ended(self) -> bool:
        return self.status in ("finished", "stopped")

    def warns(self, kind: Kind) -> bool:
        return any(w.kind == kind for w in self.warnings)

    @property
    def sources(self) -> dict[str, dict[str, float]]:
        """Figures of the last step by data source, if there are several: groups, rollouts, tokens, reward,
        success and groups/hit."""
        figures: dict[str, dict[str, float]] = {}
        for key, value in self.learner.items():
            if key.startswith("source/") and isinstance(value, int | float):
                _, source, name = key.split("/", 2)
                figures.setdefault(source, {})[name] = value
        return figures

    def of(self, kind: str) -> list[Part]:
        return [p for p in self.parts if p.kind == kind]

    def alive(self, kind: str) -> list[Part]:
        return [p for p in self.of(kind) if p.alive]
