"""What vLLM records: the load of an engine, and of each sequence its times, log-probs and weight versions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vllm.outputs import CompletionOutput
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.metrics.loggers import StatLoggerBase

from hora_rl.actors.generator.failures import Progress
from hora_rl.common.types import Origin, VersionSpan

if TYPE_CHECKING:
    from vllm.v1.engine.output_processor import RequestState
    from vllm.v1.metrics.stats import IterationStats, RequestStateStats, SchedulerStats


class Load(StatLoggerBase):
    """Newest figures of one engine's scheduler: sequences, used share of the KV cache, and prompt tokens
    looked up and found in the prefix cache since the start. Reports generated tokens to `progress`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.running = 0
        self.waiting = 0
        self.cache = 0.0
        self.prefix_queries = 0
        self.prefix_hits = 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.waiting = scheduler_stats.num_waiting_reqs
            self.cache = scheduler_stats.kv_cache_usage
            self.prefix_queries += scheduler_stats.prefix_cache_stats.queries
            self.prefix_hits += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None and iteration_stats.num_generation_tokens:
            self._progress.moved()

    def log_engine_initialized(self) -> None:
        """Required by vLLM; logs nothing."""


class SampledLogprobs(LogprobsProcessor):
    """`logprobs` of a completion is the list of its sampled tokens' log-probs. vLLM keeps a rank, a token and
    a text beside each, and takes a tenth of a replica's processor time for that."""

    def __init__(self) -> None:
        super().__init__(
            tokenizer=None,
            logprobs=[],
            prompt_logprobs=None,
            cumulative_logprob=None,
            num_logprobs=0,
            num_prompt_logprobs=None,
        )

    def update_from_output(self, output: EngineCoreOutput) -> None:
        if output.new_logprobs is not None:
            # (new tokens, 1): vLLM puts the sampled token first, and `logprobs=0` asks for no other.
            self.logprobs.extend(output.new_logprobs.logprobs[:, 0].tolist())


class Sequences(dict[str, "RequestState"]):
    """vLLM's table of running sequences by internal id. vLLM returns the times of a request's last sequence
    only, and drops each sequence when it ends. This table keeps all records until `ended` exits."""

    def __init__(self, running: Mapping[str, RequestState]) -> None:
        super().__init__(running)
        self._ended: dict[str, dict[int, RequestStateStats]] = {}

    def __setitem__(self, name: str, state: RequestState) -> None:
        state.logprobs_processor = SampledLogprobs()
        super().__setitem__(name, state)

    def pop(self, name: str, *default: object) -> object:
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
    """One sequence's times by the wall clock. vLLM records arrivals so, and tokens by the monotonic clock."""
    if stats is None or not stats.first_token_ts:
        return None
    offset = time.time() - time.monotonic()
    first, last = stats.first_token_ts + offset, stats.last_token_ts + offset
    return Origin(replica, min(stats.arrival_time, first), first, last)


def spans_of(output: CompletionOutput) -> tuple[VersionSpan, ...]:
    """The weight version of each span of tokens, as recorded by vLLM."""
    return tuple(VersionSpan(int(s.version), s.start, s.end) for s in output.weight_versions or ())
