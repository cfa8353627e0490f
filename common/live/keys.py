"""All Redis keys of a run. Braces put a run's keys in one cluster slot, which its scripts need."""


class Keys:
    """The keys of `run`. The text below a key is its type and content."""

    def __init__(self, run: str) -> None:
        self._prefix = prefix = f"hora:{{{run}}}:"
        self.pattern = f"{prefix}*"
        """SCAN pattern of all keys."""
        self.config = f"{prefix}config"
        """string: the coordinators' resolved configuration, JSON."""
        self.groups = f"{prefix}groups"
        """stream: complete groups, fields `id` and `batch`."""
        self.pushed = f"{prefix}pushed"
        """hash: group id -> stream entry id. Makes pushing idempotent for the life of the run."""
        self.hits = f"{prefix}hits"
        """hash: group id -> hits among all its rollouts, written with its first push."""
        self.plans = f"{prefix}plans"
        """hash: "batch:shard" -> JSON of Phase A's counts and Δ; "batch:shard:r" -> the same for round r of
        Phase B, from 2. The first plan of a round counts."""
        self.shards = f"{prefix}shards"
        """hash: "batch:shard" -> JSON report of a complete shard."""
        self.leases = f"{prefix}lease"
        """prefix of shard leases: one coordinator works on a shard at a time."""
        self.ledger = f"{prefix}ledger"
        """hash: step -> JSON list of [group id, entry id, batch, cost], written before the step trains."""
        self.dead = f"{prefix}dead"
        """stream: messages that do not decode or validate, with `reason`."""
        self.redo = f"{prefix}redo"
        """hash: group id -> batch of groups with an unusable message, to be sampled again."""
        self.state = f"{prefix}state"
        """hash: `common.live.state.SharedState`."""
        self.stopped = f"{prefix}stopped"
        """hash: id of a learner start -> why it must end, for its ranks when they are restarted."""
        self.blocked = f"{prefix}blocked"
        """string that expires: how often an environment recently blocked its replica."""
        self.hold = f"{prefix}hold"
        """string that expires: while it exists, the learner publishes no weights."""
        self.weights = f"{prefix}weights"
        """string: JSON manifest of the newest published weights."""
        self.counters = f"{prefix}counters"
        """hash of monotone counters."""
        self.parts = f"{prefix}parts"
        """hash: part name (kind/name) -> JSON of a `common.live.telemetry.Beat`."""
        self.steps = f"{prefix}steps"
        """stream: metrics of every optimizer step, field `metrics` = JSON."""
        self.history = f"{prefix}history"
        """stream: totals and levels once a second, written by a coordinator, for rates and charts."""
        self.evaluations = f"{prefix}evaluations"
        """hash: weight version -> JSON of pass@k by name."""

    def pre_rollouts(self, group: str) -> str:
        """string: msgpack of the group with only its Phase A rollouts, written with its shard's plan."""
        return f"{self._prefix}pre_rollouts:{group}"

    def drawn(self, group: str, round: int) -> str:
        """string: msgpack of the group's rollouts from a round of Phase B before the last, written with the
        next round's plan. A restarted coordinator continues with it; pushing the group removes it."""
        return f"{self._prefix}drawn:{group}:{round}"

    def additional(self, entry: str) -> str:
        """string: msgpack of the Phase B rollouts of the group named by this stream entry."""
        return f"{self._prefix}additional:{entry}"
