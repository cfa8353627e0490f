"""Which generator replica gets a request: Ray Serve's choice by load, among those with a free place.

Sampling leaves RESERVED places of each replica free. The calls that bring new weights go to every replica,
full or not, and would otherwise wait for a request to end, which may take minutes. A router's view of a
replica's load may be out of date, so a replica refuses a request above its limit (`NoRoom`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

RESERVED = 8
"""Places of each replica (of Serve's `max_ongoing_requests`) that no sampling request takes."""
PROBE_ATTEMPTS = 4
"""Probe with the timeout of a fourth attempt (1 s): a full replica answers late, and the request can wait."""


class BalanceRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    """Ray Serve's choice by load, restricted to replicas with a free place."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        chosen = await super().choose_replicas(candidate_replicas, pending_request)
        return [await with_room(self, replicas) for replicas in chosen]


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
