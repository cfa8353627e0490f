"""Which generator replica gets a request: the one whose prefix cache has the prompt, unless it is overloaded.

Every prompt has a home replica by rendezvous hashing, so routers of any number of coordinators agree without a word,
and a replica that comes or goes moves only its own share of the prompts. Phase A fills the home's cache and Phase B finds
it. A home that has `slack` more requests in flight than the least busy replica is passed over: the tail of a shard
is worth more than a prefix. So is one that did not answer the last time: it may have no newer weights to get.

Sampling takes all places of a replica but a few: the calls that bring new weights go to every replica, full or not, and would
wait there until a request ends, which may take minutes. What a router knows of a replica's load is a little old, so a replica
refuses what came too much (`NoRoom`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

RESERVED = 8
"""Places of each replica (of Serve's `max_ongoing_requests`) that no request for samples takes."""
UNHURRIED = 4
"""As if asked this often before: a replica gets the longest time that Serve gives for an answer (1 s), for a full one is a busy
one, and a request for which there may be no place loses nothing by waiting."""


def ranked(
    prompt: int, replicas: Sequence[str], in_flight: Mapping[str, int], slack: int, attempt: int = 0
) -> list[str]:
    """`replicas` (names) in the order in which prompt number `prompt` should try them, asked `attempt` times before.

    `in_flight`: requests each is known to have; one that is not in it counts as idle.
    """
    home = max(replicas, key=lambda name: _weight(prompt, name))
    others = sorted((name for name in replicas if name != home), key=lambda name: in_flight.get(name, 0))
    least = min((in_flight.get(name, 0) for name in replicas), default=0)
    overloaded = in_flight.get(home, 0) > least + slack
    return [*others, home] if overloaded or attempt % 2 else [home, *others]


def _weight(prompt: int, replica: str) -> bytes:
    return hashlib.blake2b(f"{prompt}:{replica}".encode(), digest_size=8).digest()


async def with_room(router: RequestRouter, replicas: Sequence[RunningReplica]) -> list[RunningReplica]:
    """Those that have a place for one more request beside the reserved ones. What is known of their load may be out of date, so
    when all seem full they are asked."""

    def limit(replica: RunningReplica) -> int:
        return max(1, replica.max_ongoing_requests - RESERVED)

    cache = router.replica_queue_len_cache
    found = [r for r in replicas if (cache.get(r.replica_id) or 0) < limit(r)]
    if found:
        return found
    asked = await router._probe_queue_lens(list(replicas), UNHURRIED)
    return [r for r, length in asked if length is not None and length < limit(r)]


class BalanceRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    """Ray Serve's own choice, by load alone."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        chosen = await super().choose_replicas(candidate_replicas, pending_request)
        return [await with_room(self, replicas) for replicas in chosen]


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """`ranked` as a router of Ray Serve. Requests whose first argument names no prompt go to the least busy replica."""

    def initialize_state(self, slack: int = 4) -> None:
        self._slack = slack

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        first: Any = None
        if pending_request is not None:
            # Every replica with room is on the list below: when there is none, wait before asking again.
            pending_request.routing_context.should_backoff = True
            first = pending_request.args[0] if pending_request.args else None
        by_name = {r.replica_id.unique_id: r for r in await with_room(self, candidate_replicas)}
        known = {name: self.replica_queue_len_cache.get(r.replica_id) or 0 for name, r in by_name.items()}
        prompt = getattr(first, "prompt", None)
        if prompt is None or not by_name:
            order = sorted(by_name, key=lambda name: known[name])
        else:
            order = ranked(prompt.index, list(by_name), known, self._slack, getattr(first, "attempt", 0))
        return [[by_name[name]] for name in order]
