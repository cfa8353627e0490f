"""Which generator replica gets a request: Ray Serve's choice by load, among those with a free place. The
turns of one episode go to one replica, whose prefix cache holds the turns before. A replica that is pinned
for an evaluation gets that evaluation's requests and no others.

Sampling leaves RESERVED places of each replica free. The calls that bring new weights go to every replica,
full or not, and would otherwise wait for a request to end, which may take minutes. A router's view of a
replica's load may be out of date, so a replica refuses a request above its limit (`NoRoom`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ray.serve._private.common import RequestMetadata
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from hora_rl.actors.generator.pin import PINNED, only_on
from hora_rl.common.weights.rendezvous import chosen

RESERVED = 8
"""Places of each replica (of Serve's `max_ongoing_requests`) that no sampling request takes."""
PROBE_ATTEMPTS = 4
"""Probe with the timeout of a fourth attempt (1 s): a full replica answers late, and the request can wait."""


class BalanceRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    """Ray Serve's choice by load, restricted to replicas with a free place. Requests of one session have a
    home among the replicas, and go elsewhere while it is full."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        session = "" if pending_request is None else pending_request.metadata.session_id
        only = [r for r in candidate_replicas if session == only_on(r.replica_id.unique_id)]
        if only:
            return [await with_room(self, only)]
        free = unpinned(candidate_replicas)
        if session and free:
            at_home = await with_room(self, [home(session, free)])
            if at_home:
                return [at_home]
        chosen = await super().choose_replicas(candidate_replicas, pending_request)
        return [await with_room(self, unpinned(replicas)) for replicas in chosen]

    def _get_pending_request_matching_metadata(
        self, request_metadata: RequestMetadata | None = None
    ) -> PendingRequest | None:
        """The request that a replica was chosen for. Serve gives it to the one that has waited longest, which
        would take a session's place at home."""
        if request_metadata is not None and request_metadata.session_id:
            return self._get_pending_request_matching_internal_request_id(request_metadata)
        return super()._get_pending_request_matching_metadata(request_metadata)


def unpinned(replicas: Sequence[RunningReplica]) -> Sequence[RunningReplica]:
    """The replicas that take any request; all where none does. Serve's choices are pairs, and at most one
    replica is pinned."""
    return [r for r in replicas if not r.routing_stats.get(PINNED)] or replicas


def home(session: str, replicas: Sequence[RunningReplica]) -> RunningReplica:
    """The same replica for a session while that one is there, in whatever router; another number of replicas
    moves as few sessions as possible."""
    by_id = {replica.replica_id.unique_id: replica for replica in replicas}
    return by_id[chosen(session, by_id)]


async def with_room(router: RequestRouter, replicas: Sequence[RunningReplica]) -> list[RunningReplica]:
    """The replicas with a place that is not reserved. When the cached loads say that all are full, they are
    asked."""

    def limit(replica: RunningReplica) -> int:
        return max(1, replica.max_ongoing_requests - RESERVED)

    cache = router.replica_queue_len_cache
    found = [r for r in replicas if (cache.get(r.replica_id) or 0) < limit(r)]
    if found:
        return found
    asked = await router._probe_queue_lens(list(replicas), PROBE_ATTEMPTS)
    return [r for r, length in asked if length is not None and length < limit(r)]
