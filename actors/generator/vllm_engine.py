"""One vLLM engine with three operations: generate, receive, install. The only actor file that drives vLLM.

With `learner.lora` the engine holds the base, and every request carries the policy's adapter, which starts
as zeros. A new version replaces the adapter in place. vLLM labels tokens and finds cached prompts by the
adapter's name, which never changes, so the change is exact only within a pause and with an empty cache.

Log-probs are those of the sampling distribution (after temperature), and every completion holds the weight
version of each of its tokens. vLLM records both; nothing is reconstructed.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, cast

import numpy as np
from vllm import SamplingParams
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from hora_rl.actors.generator.adapter import NOWHERE, POLICY
from hora_rl.actors.generator.engine_args import adapter_settings, engine_args, set_environment
from hora_rl.actors.generator.failure_notes import ELSEWHERE, FailureNotes
from hora_rl.actors.generator.held_weights import Installed
from hora_rl.actors.generator.stall import Progress
from hora_rl.actors.generator.timeline import Sequences, origin_of, prompt_s
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.stop_tokens import completed, silent_tokens, stop_tokens
from hora_rl.common.errors import RunError, UnhealthyError
from hora_rl.common.types import BELOW_TRAINING, Completion, FinishReason, Origin, Tokens, VersionSpan

if TYPE_CHECKING:
    from vllm.logprobs import FlatLogprobs
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats

ARRIVAL_S = 0.02
STILL_S = 120.0  # an engine with open requests and without a token for so long is hung


class Load(StatLoggerBase):
    """Newest scheduler figures of one engine: running and waiting sequences, share of the KV cache in use,
    and how many prompt tokens were looked up in the prefix cache and found there since the start. Notes in
    `progress` that tokens were generated."""

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
        """Nothing to say."""


class Engine:
    """An `AsyncLLM` with the project's sampling and weight-update settings."""

    def __init__(self, config: Config, name: str = "generator") -> None:
        self._config = config
        self._name = name  # of the replica, recorded with its samples
        self._progress = Progress()
        self.load = Load(self._progress)
        self.paused_since: float | None = None
        self._asleep = False
        self._joining = False
        set_environment(config.generator)
        self._tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        self._silent = silent_tokens(self._tokenizer)
        self._stop = list(stop_tokens(config, self._tokenizer))
        self._adapter = adapter_settings(config.model, config.learner.lora)
        self._request = None if self._adapter is None else LoRARequest("policy", POLICY, NOWHERE)
        self._base_checksum = ""
        self._notes = FailureNotes()
        with self._why_not():
            self._llm = AsyncLLM.from_engine_args(engine_args(config), stat_loggers=[lambda *_: self.load])
        processor = self._llm.output_processor
        self._sequences = processor.request_states = Sequences(processor.request_states)

    async def begin(self) -> None:
        """Have the initial policy in place, as version 0. Before the first request."""
        if self._adapter is not None:
            folder = self._config.model.adapter
            if folder is None:
                await self._llm.collective_rpc("clear_adapter")
            else:
                await self._llm.collective_rpc("load_adapter", args=(folder, self._adapter))
            self._base_checksum = await self._digest("model")
        await self.label(0)
        # vLLM compiles a part of its sampler at the first token, which takes seconds.
        await self.generate(np.zeros(1, np.int32), 1, seed=0, temperature=1.0, max_tokens=1)

    async def generate(
        self, tokens: Tokens, n: int, seed: int, temperature: float, priority: int = 0, max_tokens: int = 0
    ) -> list[Completion]:
        """`n` completions of the prompt `tokens` (P,), of at most `max_tokens` each where that is not 0;
        lower `priority` first. Cancelling the call aborts the sequences. Raises UnhealthyError when the
        engine is dead."""
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
            # vLLM would detokenize every token twice, for the answer and for its log-prob. Once at the end is
            # enough.
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        final, name = None, uuid.uuid4().hex
        prompt: object = {"prompt_token_ids": tokens.tolist()}
        with self._progress.request(), self._named_when_dead(), self._sequences.ended(name) as stats:
            async for output in self._llm.generate(
                prompt, params, request_id=name, priority=priority, lora_request=self._request
            ):
                final = output
        if final is None or len(final.outputs) != n:
            raise RuntimeError(f"the engine returned {len(final.outputs) if final else 0} of {n} completions")
        outputs = sorted(final.outputs, key=lambda o: o.index)
        return [self._completion(o, origin_of(self._name, stats.get(o.index))) for o in outputs]

    async def stream(
        self, tokens: list[int], params: SamplingParams, charge: Callable[[float], None]
    ) -> AsyncGenerator[RequestOutput]:
        """vLLM's own outputs for a request that is not training's, behind all that are. Calls `charge` with
        the seconds that the engine took for its prompt."""
        name = uuid.uuid4().hex
        prompt: object = {"prompt_token_ids": tokens}
        with self._progress.request(), self._named_when_dead(), self._sequences.ended(name) as stats:
            outputs = self._llm.generate(
                prompt, params, request_id=name, priority=BELOW_TRAINING, lora_request=self._request
            )
            try:
                async with aclosing(outputs):
                    async for output in outputs:
                        yield output
            finally:
                charge(max(map(prompt_s, stats.values()), default=0.0))

    async def check_health(self) -> None:
        """Raise UnhealthyError when the engine is dead or hung."""
        paused = self._joining or self.paused_since is not None
        if not paused and self._progress.still_s > STILL_S:
            raise UnhealthyError(f"no sequence got a token for {self._progress.still_s:.0f} s")
        with self._named_when_dead():
            await self._llm.check_health()

    async def init_transfer(self, info: Mapping[str, object]) -> None:
        self._joining = True  # the workers wait for the group's other members and do not decode
        try:
            await self._llm.shutdown_weight_transfer_engine()  # an earlier group's half
            await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=dict(info)))
        finally:
            self._joining = False
            self._progress.moved()

    async def receive(self, info: Mapping[str, object]) -> None:
        """Return when the weights that `info` describes have arrived. Generation continues meanwhile, except
        over NCCL, which writes into the model directly."""
        arrives = self._config.weights.transport != "nccl"
        if not arrives:
            await self.pause()
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=dict(info)))
        while arrives and not all(await self._llm.collective_rpc("weights_arrived")):
            await asyncio.sleep(ARRIVAL_S)

    async def install(self, version: int) -> Installed:
        """Load the received weights and label all later tokens `version`; running sequences are kept. An
        engine that sleeps wakes: its weights first, and its KV cache after they are replaced and labelled,
        because with that it decodes again."""
        since = time.monotonic()
        if self._asleep:
            await self._llm.wake_up(["weights"])
        elif self.paused_since is None:
            await self.pause()
        else:
            since = self.paused_since
        if self._adapter is None:
            await self._llm.finish_weight_update(weight_version=str(version))
        else:
            await self._llm.collective_rpc("install_adapter", args=(self._adapter,))
            await self.label(version)
        began = time.monotonic()
        checksum = await self.checksum()
        checksum_s = time.monotonic() - began
        await self.resume()
        return Installed(time.monotonic() - since, checksum, checksum_s)

    async def pause(self) -> None:
        """Stop decoding and keep the running sequences."""
        self.paused_since = time.monotonic()
        await self._llm.pause_generation(mode="keep", clear_cache=self._config.generator.clear_cache)

    async def sleep(self) -> None:
        """Stop decoding and free the memory of weights and KV cache, for whoever shares the card. Running
        sequences are kept, and requests that come meanwhile wait.

        The weights go to the host (level 1). Dropping them (level 2) would need someone who has them all
        again: nobody sends the base of an adapter, and without a new version nobody sends any.
        """
        if self._asleep:
            return
        self.paused_since = time.monotonic()
        await self._llm.sleep(level=1, mode="keep")
        self._asleep = True

    async def wake(self) -> None:
        """Continue on the weights that the engine fell asleep with."""
        if self._asleep:
            await self._llm.wake_up(["weights"])
            await self.resume()

    async def resume(self) -> None:
        if not self._asleep:
            await self._llm.resume_generation()
        elif not await self._llm.wake_up(["kv_cache"]):
            raise UnhealthyError("the vLLM engine does not wake up")
        self._asleep, self.paused_since = False, None
        self._progress.moved()

    async def label(self, version: int) -> None:
        """Label the loaded weights as `version` without changing them."""
        await self._llm.update_weight_version(str(version))

    async def checksum(self) -> str:
        """Digest of all weights as this engine holds them; equal on all replicas of one version and layout.
        The base of an adapter never changes: its part is computed once."""
        if self._adapter is None:
            return await self._digest("model")
        return _joined([self._base_checksum, await self._digest("adapter")])

    async def _digest(self, part: str) -> str:
        return _joined(await self._llm.collective_rpc("hash_weights", args=(part,)))

    def shutdown(self) -> None:
        self._llm.shutdown(timeout=5.0)

    def _completion(self, output: CompletionOutput, origin: Origin | None) -> Completion:
        tokens = np.asarray(output.token_ids, dtype=np.int32)
        flat = cast("FlatLogprobs", output.logprobs)
        # With `logprobs=0` a position holds only the sampled token; its start index is that token's entry.
        logprobs = np.asarray([flat.logprobs[i] for i in flat.start_indices], dtype=np.float32)
        if output.finish_reason not in ("stop", "length"):
            raise RuntimeError(
                f"a completion ended with {output.finish_reason!r}; the request is sampled again"
            )
        return Completion(
            text=completed(self._tokenizer, self._silent, output.token_ids, output.finish_reason),
            tokens=tokens,
            # Rounding can lift the log-prob of a certain token slightly above zero.
            logprobs=np.minimum(logprobs, np.float32(0.0)),
            finish_reason=cast(FinishReason, output.finish_reason),
            spans=spans_of(output),
            origin=origin,
        )

    @contextmanager
    def _why_not(self) -> Iterator[None]:
        """RunError with what made vLLM's processes fail, where vLLM says only that they did."""
        try:
            yield
        except RuntimeError as error:
            if ELSEWHERE not in str(error):
                raise
            why = self._notes.reason() or "a process of it ended without a word, as one killed for memory"
            raise RunError(f"the vLLM engine does not start: {why}") from None

    @contextmanager
    def _named_when_dead(self) -> Iterator[None]:
        """vLLM's error as ours, which callers can catch without importing vLLM."""
        try:
            yield
        except EngineDeadError as error:
            why = self._notes.reason()
            raise UnhealthyError("the vLLM engine died" + (f": {why}" if why else "")) from error


def _joined(digests: list[str]) -> str:
    return hashlib.sha256(";".join(digests).encode()).hexdigest()


def spans_of(output: CompletionOutput) -> tuple[VersionSpan, ...]:
    """Which weight version sampled which tokens, as vLLM recorded it."""
    return tuple(VersionSpan(int(s.version), s.start, s.end) for s in output.weight_versions or ())
