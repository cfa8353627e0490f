"""One vLLM engine behind three verbs: generate, receive, install. The only actor file that drives vLLM.

Log-probs are those of the sampling distribution (after temperature), and every completion says which weight
version each of its tokens came from: both are vLLM's own records, not reconstructions.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
from vllm import AsyncEngineArgs, SamplingParams
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from actors.generator.time_limit import Clock
from actors.generator.timeline import Sequences, origin_of
from common.config import Config
from common.prompts import load_tokenizer
from common.stop_tokens import silent_tokens, spoken, stop_tokens
from common.types import BELOW_TRAINING, Completion, FinishReason, Origin, Tokens, VersionSpan

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.logprobs import FlatLogprobs
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

LOOK_S = 1.0
ARRIVAL_S = 0.02
STILL_S = 120.0  # an engine with sequences and without tokens for so long is no longer fit to serve


class Load(StatLoggerBase):
    """Newest scheduler figures of one engine: running and waiting sequences, share of the KV cache in use,
    and how many prompt tokens were looked up in the prefix cache and found there since the start."""

    def __init__(self, vllm_config: VllmConfig | None = None, engine_index: int = 0) -> None:
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

    def log_engine_initialized(self) -> None:
        """Nothing to say."""


class Engine:
    """An `AsyncLLM` with the project's sampling and weight-update settings."""

    def __init__(self, config: Config, name: str = "generator") -> None:
        self._config = config
        self._name = name  # of the replica, for what it samples
        self.load = Load()
        self.paused_since: float | None = None
        self._joining = False
        self.cut = 0
        self._clock = Clock(config.rollout.time_limit_s)
        self._cutting: asyncio.Task[None] | None = None
        _set_cpu_limits(config)
        self._tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        self._silent = silent_tokens(self._tokenizer)
        self._stop = list(stop_tokens(config, self._tokenizer))
        self._llm = AsyncLLM.fromengine_args(engine_args(config), stat_loggers=[lambda *_: self.load])
        processor = self._llm.output_processor
        self._sequences = processor.request_states = Sequences(processor.request_states)

    async def generate(
        self, tokens: Tokens, n: int, seed: int, temperature: float, priority: int = 0, max_tokens: int = 0
    ) -> list[Completion]:
        """`n` completions of the prompt `tokens` (P,), of at most `max_tokens` each where that is not 0;
        lower `priority` first. Cancelling the call aborts the sequences.

        What decodes for longer than rollout.time_limit_s is cut there, like at the token limit; `cut` counts
        these.
        """
        self._begin_cutting()
        limit = self._config.rollout.max_response_tokens
        params = SamplingParams(
            n=n,
            seed=seed,
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            max_tokens=min(max_tokens, limit) if max_tokens else limit,
            stop_token_ids=self._stop,
            logprobs=0,
            flat_logprobs=True,
            # vLLM would turn every token into text twice, for the answer and for its log-prob; once at the
            # end is enough.
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        final, name = None, uuid.uuid4().hex
        prompt: object = {"prompt_token_ids": tokens.tolist()}
        try:
            async for output in self._llm.generate(prompt, params, request_id=name, priority=priority):
                final = output
        finally:
            stats = self._sequences.take(name)
        if final is None or len(final.outputs) != n:
            raise RuntimeError(f"the engine returned {len(final.outputs) if final else 0} of {n} completions")
        self.cut += sum(o.finish_reason == "abort" for o in final.outputs)
        return [
            _completion(o, self._text(o), origin_of(self._name, stats.get(o.index)))
            for o in sorted(final.outputs, key=lambda o: o.index)
        ]

    async def stream(self, tokens: list[int], params: SamplingParams) -> AsyncIterator[RequestOutput]:
        """vLLM's own outputs for a request that is not training's, behind all that are."""
        self._begin_cutting()
        name = uuid.uuid4().hex
        prompt: object = {"prompt_token_ids": tokens}
        try:
            async for output in self._llm.generate(prompt, params, request_id=name, priority=BELOW_TRAINING):
                yield output
        finally:
            self._sequences.take(name)

    def _begin_cutting(self) -> None:
        if self._cutting is None:
            self._cutting = asyncio.get_running_loop().create_task(self._cut_overdue())

    def _text(self, output: CompletionOutput) -> str:
        """The answer's text without the token that ended it, and without special tokens."""
        ids = output.token_ids[:-1] if output.finish_reason == "stop" else output.token_ids
        return spoken(self._tokenizer, self._silent, ids)

    async def _cut_overdue(self) -> None:
        """Abort what is over its limit, for as long as the engine lives: a sequence ends with what it has so
        far."""
        processor, looked = self._llm.output_processor, time.monotonic()
        while True:
            await asyncio.sleep(min(LOOK_S, self._clock.limit_s / 4))
            elapsed, looked = time.monotonic() - looked, time.monotonic()
            states = processor.request_states
            tokens = {name: s.stats.num_generation_tokens for name, s in states.items() if s.stats}
            paused = self._joining or self.paused_since is not None
            overdue = self._clock.look(tokens, elapsed, paused=paused)
            parents = [states[name].parent_req for name in overdue]
            if overdue:
                await self._llm.abort(overdue, internal=True)
            for parent in parents:
                if parent is not None and not parent.child_requests:
                    # vLLM forgets a request of several sequences only when the last of them ends by itself.
                    processor.parent_requests.pop(parent.request_id, None)

    async def check_health(self) -> None:
        if self._cutting is not None and self._cutting.done():
            self._cutting.result()
        if self._clock.still_s > STILL_S:
            raise RuntimeError(f"no sequence got a token for {self._clock.still_s:.0f} s")
        await self._llm.check_health()

    async def init_transfer(self, info: Mapping[str, object]) -> None:
        self._joining = True  # the workers wait for the group's other members
        try:
            await self._llm.shutdown_weight_transfer_engine()  # an earlier group's half
            await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=dict(info)))
        finally:
            self._joining = False

    async def receive(self, info: Mapping[str, object]) -> None:
        """Until the weights that `info` tells of are here, while generation goes on; over NCCL it pauses, for
        there they come right into the model."""
        arrives = self._config.weights.transport != "nccl"
        if not arrives:
            await self._pause()
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=dict(info)))
        while arrives and not all(await self._llm.collective_rpc("weights_arrived")):
            await asyncio.sleep(ARRIVAL_S)

    async def install(self, version: int) -> float:
        """Put what was received into place and label all later tokens `version`; running sequences are kept.
        Returns the seconds that generation stood still."""
        if self.paused_since is None:
            await self._pause()
        await self._llm.finish_weight_update(weight_version=str(version))
        await self._llm.resume_generation()
        since, self.paused_since = self.paused_since, None
        return 0.0 if since is None else time.monotonic() - since

    async def _pause(self) -> None:
        self.paused_since = time.monotonic()
        await self._llm.pause_generation(mode="keep", clear_cache=self._config.generator.clear_cache)

    async def label(self, version: int) -> None:
        """Name the version of the weights in place without changing them."""
        await self._llm.update_weight_version(str(version))

    async def checksum(self) -> str:
        """Digest of the weights as this engine holds them; equal on all replicas of one version and
        layout."""
        digest = hashlib.sha256()
        for worker in await self._llm.compute_weight_checksums():
            for name in sorted(worker):
                digest.update(f"{name}={worker[name]};".encode())
        return digest.hexdigest()

    def shutdown(self) -> None:
        if self._cutting is not None:
            self._cutting.cancel()
        self._llm.shutdown(timeout=5.0)


def _set_cpu_limits(config: Config) -> None:
    # vLLM reads these when its worker processes start. `nobind`: with `auto` two replicas bind to the same
    # core.
    if current_platform.is_cpu():
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(config.generator.kv_cache_gib)
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        os.environ["OMP_NUM_THREADS"] = str(config.generator.threads)
        if config.generator.tensor_parallel == 1:
            # The model in the engine's own process. vLLM would put it in one more, and the two spin on shared
            # memory while they wait for each other, which takes the cores from everything else; its reason,
            # to bind threads, is not ours.
            os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def engine_args(config: Config) -> AsyncEngineArgs:
    """What vLLM is told of a replica's engine."""
    generator, longest = config.generator, config.longest
    # On CPU a seeded sequence whose prefill is cut in two ends the engine ("CPU Generator does not use
    # offset").
    whole_prompts = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(4096, longest)}
    return AsyncEngineArgs(
        model=config.model.path,
        dtype=config.model.dtype,
        trust_remote_code=config.model.trust_remote_code,
        seed=config.run.seed,
        tensor_parallel_size=generator.tensor_parallel,
        gpu_memory_utilization=generator.memory_utilization,
        max_model_len=longest,
        max_num_seqs=generator.max_sequences,
        enforce_eager=generator.enforce_eager,
        # First come, first served would let the shards in flight end together and leave the engine empty
        # after them.
        scheduling_policy="priority",
        logprobs_mode="processed_logprobs",
        weight_transfer_config=WeightTransferConfig(backend=config.weights.transport),
        worker_extension_cls=f"{__package__}.weight_engine.WorkerExtension",
        enable_log_requests=False,
        **(whole_prompts if current_platform.is_cpu() else {}),
    )


def _completion(output: CompletionOutput, text: str, origin: Origin | None) -> Completion:
    tokens = np.asarray(output.token_ids, dtype=np.int32)
    flat = cast("FlatLogprobs", output.logprobs)
    # With `logprobs=0` a position holds the sampled token alone; its start index is that token's entry.
    logprobs = np.asarray([flat.logprobs[i] for i in flat.start_indices], dtype=np.float32)
    cut = output.finish_reason == "abort" and len(tokens) > 0
    if output.finish_reason not in ("stop", "length") and not cut:
        raise RuntimeError(
            f"a completion ended with {output.finish_reason!r}: not an answer, to be sampled again"
        )
    spans = tuple(VersionSpan(int(s.version), s.start, s.end) for s in output.weight_versions or ())
    return Completion(
        text=text,
        tokens=tokens,
        # Rounding can lift the log-prob of a sure token a hair above zero.
        logprobs=np.minimum(logprobs, np.float32(0.0)),
        finish_reason="length" if cut else cast(FinishReason, output.finish_reason),
        spans=spans,
        origin=origin,
    )
