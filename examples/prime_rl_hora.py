"""prime-rl 0.8 (commit 559b447, 21 August 2026) with HORA, untested in prime-rl: groups grow in rounds.

    from examples.prime_rl_hora import install
    install(prompts=64, group_size=32, pre_rollouts=8, rule="first_hit", rounds=4, stop="hit")
    # then start the orchestrator as ever, e.g. prime_rl.entrypoints.orchestrator.main()

`Division` decides; `install` puts it between prime-rl's dispatcher, which opens a group with Phase A's
episodes and adds what is granted, and its sink, which finishes a group when its shard has spent its budget.
`prompts` groups of one environment are a shard, in the order in which they answer. A success is an episode
with a reward of at least 1; a lost episode counts as none. A group that was dropped as stale ends alone; what
is granted to it goes unspent.
"""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hora_rl.allocator import Session


@dataclass
class Division:
    """Shards of groups by name. `arrived` says how many episodes which groups get next, and which groups are
    whole.
    """

    prompts: int
    group_size: int
    pre_rollouts: int
    rule: str = "hit_utility"
    rounds: int = 1
    stop: str = "none"
    _open: dict[str, tuple[Session, list[str]]] = field(default_factory=dict)
    _of: dict[str, tuple[Session, list[str]]] = field(default_factory=dict)

    def arrived(self, env: str, group: str, success: bool) -> tuple[dict[str, int], list[str]]:
        """One episode of `group`: (episodes granted by group, groups that are whole)."""
        session, members = self._shard_of(env, group)
        session.tell(members.index(group), success)
        if session.done:
            for member in members:
                del self._of[member]
            return {}, list(members)
        return {members[i]: n for i, n in Counter(iter(session.next, None)).items()}, []

    def _shard_of(self, env: str, group: str) -> tuple[Session, list[str]]:
        if group not in self._of:
            if env not in self._open:
                budget = self.prompts * (self.group_size - self.pre_rollouts)
                session = Session(
                    self.prompts,
                    budget,
                    self.rule,
                    rounds=self.rounds,
                    stop=self.stop,
                    pre_rollouts=self.pre_rollouts,
                )
                Counter(iter(session.next, None))  # Phase A, which the dispatcher opens groups with
                self._open[env] = (session, [])
            self._of[group] = self._open[env]
            self._open[env][1].append(group)
            if len(self._open[env][1]) == self.prompts:
                del self._open[env]
        return self._of[group]


def install(**settings: Any) -> Division:
    """Make the orchestrator of this process use HORA's dispatcher and sink. `settings`: `Division`'s."""
    from prime_rl.orchestrator import orchestrator
    from prime_rl.orchestrator.dispatcher import Dispatcher
    from prime_rl.orchestrator.train_sink import TrainSink
    from prime_rl.orchestrator.utils import episode_env_name, episode_group_id

    division = Division(**settings)
    orchestrator.Dispatcher, orchestrator.TrainSink = classes(
        Dispatcher, TrainSink, division, lambda e: (episode_env_name(e), episode_group_id(e))
    )
    return division


def classes(
    dispatcher: type[Any],
    sink: type[Any],
    division: Division,
    names: Callable[[Any], tuple[str, str]],
) -> tuple[type[Any], type[Any]]:
    """prime-rl's classes with group sizes of `division`; `names` of an episode: environment, group."""
    dispatchers: list[Any] = []

    class HoraDispatcher(dispatcher):  # type: ignore[misc]
        """Groups stay open until the sink says that they are whole."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            dispatchers[:] = [self]

        def next_fresh_group(self, kind: Any, envs: Any) -> Any:
            group = super().next_fresh_group(kind, envs)
            if group is not None and kind == "train":
                group.episodes_to_schedule, group.target_episodes = division.pre_rollouts, sys.maxsize
            return group

    class HoraSink(sink):  # type: ignore[misc]
        async def add(self, episode: Any) -> Any:
            await self.process_episode(episode)
            env, group = names(episode)
            self.pending_groups[group].append(episode)
            await self._count(env, group, succeeded(episode))
            return self._maybe_batch()

        async def cancel(self, cancellation: Any) -> Any:
            self.pending_group_cancellations[cancellation.group_id] = cancellation
            await self._end(cancellation.group_id)
            for _ in range(cancellation.count):
                await self._count(cancellation.env_name, cancellation.group_id, False)
            return self._maybe_batch()

        async def _count(self, env: str, group: str, success: bool) -> None:
            arrived = [(group, success)]
            while arrived:
                granted, whole = division.arrived(env, *arrived.pop())
                for name in whole:
                    await self._end(name)
                for name, n in granted.items():
                    arrived += self._grant(name, n)

        def _grant(self, group: str, n: int) -> list[tuple[str, bool]]:
            """Ask for `n` more episodes; those of a group that was dropped are lost at once."""
            still_open = dispatchers[0].groups.get(uuid.UUID(group))
            if still_open is None:
                return [(group, False)] * n
            still_open.episodes_to_schedule += n
            return []

        async def _end(self, group: str) -> None:
            dispatchers[0].groups.pop(uuid.UUID(group), None)
            await self.process_group(group)  # does nothing for one that has ended before

    return HoraDispatcher, HoraSink


def succeeded(episode: Any) -> bool:
    """Whether a trainable trace of the episode has a reward of at least 1."""
    return any(t.reward >= 1 for t in episode.traces if t.agent.trainable and not t.has_error)
