"""Every Redis key of a run, in one place. Braces make a run's keys share one cluster slot, as its scripts
need."""

from __future__ import annotations


class Keys:
    """The keys of `run`; below each is its type and content."""

    def __init__(self, run: str) -> None:
        self._prefix = prefix = f"hora:{{{run}}}:"
        self.pattern = f"{prefix}*"
        """What SCAN matches for every key of the run."""
        self.config = f"{prefix}config"
        """string: the coordinators' resolved configuration, JSON."""
        self.groups = f"{prefix}groups"
        """stream: complete groups, fields `id` and `batch`."""
        self.pushed = f"{prefix}pushed"
        """hash: group id -> stream entry id. Makes pushing idempotent for the life of the run."""
        self.plans = f"{prefix}plans"
        """hash: "batch:shard" -> JSON of Phase A's counts and Δ; "batch:shard:r" -> the same of round r of
        Phase B, from 2. The first plan of a shard's round is the one that counts."""
        self.shards = f"{prefix}shards"
        """hash: "batch:shard" -> JSON report of a complete shard."""
        self.leases = f"{prefix}lease"
        """prefix of the lease of one shard: one coordinator works on it at a time."""
        self.ledger = f"{prefix}ledger"
        """hash: step -> JSON list of [group id, entry id, batch, cost], written before the step is
        trained."""
        self.dead = f"{prefix}dead"
        """stream: messages that do not decode or validate, with `reason`."""
        self.redo = f"{prefix}redo"
        """hash: group id -> batch of the groups whose message was unusable, to be sampled again."""
        self.state = f"{prefix}state"
        """hash: `common.live.state.SharedState`."""
        self.stopped = f"{prefix}stopped"
        """hash: id of a start of the learner -> why it must end, for its ranks when they are restarted."""
        self.blocked = f"{prefix}blocked"
        """string that expires: how often an environment blocked its replica lately."""
        self.hold = f"{prefix}hold"
        """string that expires: while it is there, the learner publishes no weights."""
        self.pin = f"{prefix}pin"
        """string that expires: JSON of the replica that an evaluation keeps at a version."""
        self.weights = f"{prefix}weights"
        """string: JSON manifest of the newest published weights."""
        self.counters = f"{prefix}counters"
        """hash of monotone counters."""
        self.parts = f"{prefix}parts"
        """hash: part name (replica, learner rank, coordinator) -> JSON heartbeat."""
        self.steps = f"{prefix}steps"
        """stream: metrics of every optimizer step, field `metrics` = JSON."""
        self.history = f"{prefix}history"
        """stream: totals and levels once a second, written by a coordinator, for rates and charts."""
        self.evaluations = f"{prefix}evaluations"
        """hash: weight version -> JSON of pass@k by name."""

    def pre_rollouts(self, group: str) -> str:
        """string: the msgpack of the group with its Phase A rollouts only, written with its shard's plan."""
        return f"{self._prefix}pre_rollouts:{group}"

    def drawn(self, group: str, round: int) -> str:
        """string: the msgpack of the rollouts that a group got in a round of Phase B before the last, written
        with the plan of the next round; a restarted coordinator continues with it, and the push of the group
        removes it."""
        return f"{self._prefix}drawn:{group}:{round}"

    def additional(self, entry: str) -> str:
        """string: the msgpack of the Phase B rollouts of the group that this entry of the stream names."""
        return f"{self._prefix}additional:{entry}"
