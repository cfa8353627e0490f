"""When each sequence of a request was taken, got its first token and ended, from vLLM's own records."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from vllm.v1.engine.output_processor import RequestState
from vllm.v1.metrics.stats import RequestStateStats

from common.types import Origin


class Sequences(dict[str, RequestState]):
    """vLLM's table of the sequences in flight, by internal id. vLLM returns the times of a request's last
    sequence only, and forgets a sequence when it ends. This table keeps the record of each one until `take`.
    """

    def __init__(self, running: Mapping[str, RequestState]) -> None:
        super().__init__(running)
        self._ended: defaultdict[str, dict[int, RequestStateStats]] = defaultdict(dict)

    def pop(self, name: str, *default: Any) -> Any:
        state = super().pop(name, *default)
        if isinstance(state, RequestState) and state.stats is not None:
            self._ended[state.external_req_id][state.request_index] = state.stats
        return state

    def take(self, request: str) -> dict[int, RequestStateStats]:
        """The records of a request's sequences that have ended, by index; they are forgotten here."""
        return self._ended.pop(request, {})


def origin_of(replica: str, stats: RequestStateStats | None) -> Origin | None:
    """vLLM notes when a request came by the wall clock, and tokens by this host's monotonic clock."""
    if stats is None or not stats.first_token_ts:
        return None
    offset = time.time() - time.monotonic()
    first, last = stats.first_token_ts + offset, stats.last_token_ts + offset
    return Origin(replica, min(stats.arrival_time, first), first, last)
