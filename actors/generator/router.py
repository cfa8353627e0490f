"""Routes requests to generator replicas: by load, as Ray Serve does, among replicas with a free place. Turns
of one episode go to one replica, whose prefix cache holds the earlier turns.

RESERVED places of each replica stay free for weight updates, which go to all replicas, even full ones, and
would otherwise wait minutes for a request to end. The known load may be out of date, so a full replica
refuses requests (`NoRoom`).
"""

import hashlib
from collections.abc import Sequence

from ray.serve._private.common import RequestMetadata
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

RESERVED = 8
"""Places of each replica (of Serve's `max_ongoing_requests`) reserved for calls other than sampling."""
PROBE_ATTEMPTS = 4
"""Use the probe timeout of a fourth attempt (1 s): a full replica responds late, and requests can wait."""


class BalanceRouter(PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]
    """Ray Serve's choice by load, restricted to replicas with a free place. Each session has a home replica;
    its requests go elsewhere while that is full."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        session = "" if pending_request is None else pending_request.metadata.session_id
        if session and candidate_replicas:
            at_home = await with_room(self, [home(session, candidate_replicas)])
            if at_home:
                return [at_home]
        chosen = await super().choose_replicas(candidate_replicas, pending_request)
        return [await with_room(self, replicas) for replicas in chosen]

    def _get_pending_request_matching_metadata(
        self, request_metadata: RequestMetadata | None = None
    ) -> PendingRequest | None:
        """The request for which a replica was chosen. Serve would give the replica to the request that waited
        longest, and so take the place from the session."""
        if request_metadata is not None and request_metadata.session_id:
            return self._get_pending_request_matching_internal_request_id(request_metadata)
        return super()._get_pending_request_matching_metadata(request_metadata)


def home(session: str, replicas: Sequence[RunningReplica]) -> RunningReplica:
    """A session's home replica, the same in all routers; as few move as possible (rendezvous hashing)."""

    def weight(replica: RunningReplica) -> bytes:
        key = f"{session}:{replica.replica_id.unique_id}"
        return hashlib.blake2b(key.encode(), digest_size=8).digest()

    return max(replicas, key=weight)


async def with_room(router: RequestRouter, replicas: Sequence[RunningReplica]) -> list[RunningReplica]:
    """The replicas with an unreserved place. Asks the replicas if all are full by the cached loads."""

    def limit(replica: RunningReplica) -> int:
        return max(1, replica.max_ongoing_requests - RESERVED)

    cache = router.replica_queue_len_cache
    free = [r for r in replicas if (cache.get(r.replica_id) or 0) < limit(r)]
    if free:
        return free
    lengths = await router._probe_queue_lens(list(replicas), PROBE_ATTEMPTS)
    return [r for r, length in lengths if length is not None and length < limit(r)]
