"""Every Redis key of a run, in one place. Braces make a run's keys share one cluster slot, as its scripts
need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    run: str

    def _key(self, name: str) -> str:
        return f"hora:{{{self.run}}}:{name}"

    @property
    def pattern(self) -> str:
        """What SCAN matches for every key of the run."""
        return self._key("*")

    @property
    def config(self) -> str:
        """string: the coordinators' resolved configuration, JSON."""
        return self._key("config")

    @property
    def groups(self) -> str:
        """stream: complete groups, fields `id` and `batch`."""
        return self._key("groups")

    def pre_rollouts(self, group: str) -> str:
        """string: the msgpack of the group with its Phase A rollouts only, written with its shard's plan."""
        return self._key(f"pre_rollouts:{group}")

    def drawn(self, group: str, round: int) -> str:
        """string: the msgpack of the rollouts that a group got in a round of Phase B before the last, written
        with the plan of the next round; a restarted coordinator continues with it, and the push of the group
        removes it."""
        return self._key(f"drawn:{group}:{round}")

    def additional(self, entry: str) -> str:
        """string: the msgpack of the Phase B rollouts of the group that this entry of the stream names."""
        return self._key(f"additional:{entry}")

    @property
    def pushed(self) -> str:
        """hash: group id -> stream entry id. Makes pushing idempotent for the life of the run."""
        return self._key("pushed")

    @property
    def plans(self) -> str:
        """hash: "batch:shard" -> JSON of Phase A's counts and Δ; "batch:shard:r" -> the same of round r of
        Phase B, from 2. The first plan of a shard's round is the one that counts."""
        return self._key("plans")

    @property
    def shards(self) -> str:
        """hash: "batch:shard" -> JSON report of a complete shard."""
        return self._key("shards")

    @property
    def leases(self) -> str:
        """prefix of the lease of one shard: one coordinator works on it at a time."""
        return self._key("lease")

    @property
    def ledger(self) -> str:
        """hash: step -> JSON list of [group id, entry id, batch, cost], written before the step is
        trained."""
        return self._key("ledger")

    @property
    def dead(self) -> str:
        """stream: messages that do not decode or validate, with `reason`."""
        return self._key("dead")

    @property
    def redo(self) -> str:
        """hash: group id -> batch of the groups whose message was unusable, to be sampled again."""
        return self._key("redo")

    @property
    def state(self) -> str:
        """hash: `common.live.state.SharedState`."""
        return self._key("state")

    @property
    def stopped(self) -> str:
        """hash: id of a start of the learner -> why it must end, for its ranks when they are restarted."""
        return self._key("stopped")

    @property
    def blocked(self) -> str:
        """string that expires: how often an environment blocked its replica lately."""
        return self._key("blocked")

    @property
    def hold(self) -> str:
        """string that expires: while it is there, the learner publishes no weights."""
        return self._key("hold")

    @property
    def pin(self) -> str:
        """string that expires: JSON of the replica that an evaluation keeps at a version."""
        return self._key("pin")

    @property
    def weights(self) -> str:
        """string: JSON manifest of the newest published weights."""
        return self._key("weights")

    @property
    def counters(self) -> str:
        """hash of monotone counters."""
        return self._key("counters")

    @property
    def parts(self) -> str:
        """hash: part name (replica, learner rank, coordinator) -> JSON heartbeat."""
        return self._key("parts")

    @property
    def steps(self) -> str:
        """stream: metrics of every optimizer step, field `metrics` = JSON."""
        return self._key("steps")

    @property
    def history(self) -> str:
        """stream: totals and levels once a second, written by a coordinator, for rates and charts."""
        return self._key("history")

    @property
    def evaluations(self) -> str:
        """hash: weight version -> JSON of pass@k by name."""
        return self._key("evaluations")
