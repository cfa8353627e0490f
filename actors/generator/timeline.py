"""When each sequence of a request arrived, got its first token and ended, from vLLM's records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hora_rl.actors.generator.sampled_logprobs import SampledLogprobs
from hora_rl.common.types import Origin

if TYPE_CHECKING:
    from vllm.v1.engine.output_processor import RequestState
    from vllm.v1.metrics.stats import RequestStateStats


class Sequences(dict[str, "RequestState"]):
    """vLLM's table of running sequences by internal id. vLLM returns the times of a request's last sequence
    only, and drops each sequence when it ends. This table keeps all records until `ended` exits.

    Log-probs are kept as numbers (`actors.generator.sampled_logprobs`)."""

    def __init__(self, running: Mapping[str, RequestState]) -> None:
        super().__init__(running)
        self._ended: dict[str, dict[int, RequestStateStats]] = {}

    def __setitem__(self, name: str, state: RequestState) -> None:
        state.logprobs_processor = SampledLogprobs()
        super().__setitem__(name, state)

    def pop(self, name: str, *default: Any) -> Any:
        state = super().pop(name, *default)
        if state is not None and state.stats is not None and state.external_req_id in self._ended:
            self._ended[state.external_req_id][state.request_index] = state.stats
        return state

    @contextmanager
    def ended(self, request: str) -> Iterator[dict[int, RequestStateStats]]:
        """Records of the sequences of `request` that end inside this block, by index. Sequences that vLLM
        ends after the block, for a request cancelled early, leave nothing here."""
        records = self._ended[request] = {}
        try:
            yield records
        finally:
            del self._ended[request]


def origin_of(replica: str, stats: RequestStateStats | None) -> Origin | None:
    """The times of one sequence as wall-clock times. vLLM records arrivals by the wall clock, and tokens by
    the monotonic clock."""
    if stats is None or not stats.first_token_ts:
        return None
    offset = time.time() - time.monotonic()
    first, last = stats.first_token_ts + offset, stats.last_token_ts + offset
    return Origin(replica, min(stats.arrival_time, first), first, last)
