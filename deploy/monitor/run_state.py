"""State of one run at one moment, which every view shows. `reading.py` reads it."""

from dataclasses import asdict, dataclass
from enum import StrEnum

from hora_rl.common.live.telemetry import SILENT_S, TELEMETRY, PartBeat
from hora_rl.deploy.monitor.balance import Balance
from hora_rl.evaluation.phase_b import Share


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
        """Whether the last heartbeat is recent."""
        return self.silent_s < SILENT_S

    def behind(self, version: int) -> int:
        """How many versions a generator is behind."""
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
        """The parts of this kind with a recent heartbeat."""
        return [p for p in self.of(kind) if p.alive]
