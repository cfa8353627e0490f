"""One vLLM engine with three operations: generate, receive, install. The only actor file that drives vLLM.

With `learner.lora` the engine holds the base model, and every request uses the policy's adapter, which starts
as zeros. A new version replaces the adapter in place. vLLM identifies adapters by name when it labels tokens
and looks up cached prompts. The name never changes, so an exact change needs a pause and an empty cache.

Log-probs are those of the sampling distribution (after temperature). Every completion holds the weight
version of each token. vLLM records both; nothing is reconstructed.
"""

import asyncio
import hashlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
from vllm import SamplingParams
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from hora_rl.actors.generator.engine_args import adapter_settings, engine_args, set_environment
from hora_rl.actors.generator.engine_records import Load, Sequences, origin_of, spans_of
from hora_rl.actors.generator.failures import ELSEWHERE, FailureNotes, Progress, ended_when_still
from hora_rl.actors.generator.vllm_plugin import NOWHERE, POLICY
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.special_tokens import completed, silent_tokens, stop_texts, stop_tokens
from hora_rl.common.errors import RunError, UnhealthyError
from hora_rl.common.types import Completion, FinishReason, Origin, Tokens
from hora_rl.common.weights.held_weights import Installed

ARRIVAL_S, ALIVE_S = 0.02, 1.0
ARRIVAL_BETWEEN_STEPS_S = 0.1  # a call to a worker in another process empties the pipeline of steps
STILL_S = 120.0  # an engine that generates no token, or starts without processor time, for so long is hung


class Engine:
    def __init__(self, config: Config, name: str = "generator") -> None:
        self._config = config
        self._name = name  # of the replica, recorded with its samples
        self._progress = Progress()
        self.load = Load(self._progress)
        self.paused_since: float | None = None
        self._asleep = False
        self._joining = False
        self._sockets = TemporaryDirectory(prefix="hora-engine-")
        os.environ["VLLM_RPC_BASE_PATH"] = self._sockets.name
        set_environment(config.generator)
        self._tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        self._silent = silent_tokens(self._tokenizer)
        self._stop = list(stop_tokens(config, self._tokenizer))
        self._stop_texts = list(stop_texts(config.rollout.stop, self._tokenizer))
        self._adapter = adapter_settings(config.model, config.learner.lora)
        self._request = None if self._adapter is None else LoRARequest("policy", POLICY, NOWHERE)
        self._base_checksum = ""
        self._notes = FailureNotes()
        try:
            with ended_when_still(STILL_S):
                self._llm = AsyncLLM.from_engine_args(
                    engine_args(config), stat_loggers=[lambda *_: self.load]
                )
        except RuntimeError as error:
            if ELSEWHERE not in str(error):
                raise
            why = self._notes.reason() or "one of its processes was killed, perhaps for memory, or hung"
            raise RunError(f"the vLLM engine does not start: {why}") from None
        if (manager := self._llm.logger_manager) is not None:
            # vLLM's own behind ours count every token for a log and a page of Prometheus that nobody serves.
            del manager.stat_loggers[1:]
        processor = self._llm.output_processor
        self._sequences = processor.request_states = Sequences(processor.request_states)

    async def begin(self) -> None:
        """Load the initial policy as version 0, before the first request. Raises UnhealthyError."""
        first = asyncio.create_task(self._first_calls())
        try:
            with ended_when_still(STILL_S):
                while not first.done():
                    await asyncio.wait({first}, timeout=ALIVE_S)
                    await self.check_health()  # vLLM never answers a call to an engine that died
            await first
        finally:
            first.cancel()
        # vLLM's processes are connected. Without their names no socket remains where a replica is killed.
        self._sockets.cleanup()

    async def _first_calls(self) -> None:
        if self._adapter is not None:
            folder = self._config.model.adapter
            if folder is None:
                await self._llm.collective_rpc("clear_adapter")
            else:
                await self._llm.collective_rpc("load_adapter", args=(folder, self._adapter))
            self._base_checksum = await self._digest("model")
        await self.label(0)
        # At the first token vLLM compiles a part of its sampler, which takes seconds.
        # Two tokens of a prompt: on a CPU vLLM's convolution of Qwen3.5 fails on one alone.
        await self.generate(np.zeros(2, np.int32), 1, seed=0, temperature=1.0, max_tokens=1)

    async def generate(
        self,
        tokens: Tokens,
        n: int,
        seed: int,
        temperature: float,
        priority: int = 0,
        max_tokens: int = 0,
        truncation: Mapping[str, float] = {},
    ) -> list[Completion]:
        """`n` completions of the prompt `tokens` (P,), of at most `max_tokens` each unless that is 0. Lower
        `priority` is served first. `truncation` has vLLM's top_p, top_k and min_p. Cancelling the call aborts
        the sequences. Raises UnhealthyError if the engine is dead."""
        limit = self._config.rollout.max_response_tokens
        params = SamplingParams(
            n=n,
            seed=seed,
            temperature=temperature,
            **{"top_p": 1.0, "top_k": 0, **truncation},
            max_tokens=min(max_tokens, limit) if max_tokens else limit,
            stop_token_ids=self._stop,
            logprobs=0,
            stop=self._stop_texts,
            # vLLM detokenizes each token twice, for the answer and for the log-prob.
            detokenize=bool(self._stop_texts),
            skip_special_tokens=False,
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

    async def check_health(self) -> None:
        """Raise UnhealthyError if the engine is dead or hung."""
        paused = self._joining or self.paused_since is not None
        if not paused and self._progress.still_s > STILL_S:
            raise UnhealthyError(f"no sequence got a token for {self._progress.still_s:.0f} s")
        with self._named_when_dead():
            await self._llm.check_health()

    async def init_transfer(self, info: Mapping[str, object]) -> None:
        self._joining = True  # workers wait for the other group members and do not decode
        try:
            await self._llm.shutdown_weight_transfer_engine()  # leave an earlier group
            await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=dict(info)))
        finally:
            self._joining = False
            self._progress.moved()

    async def receive(self, info: Mapping[str, object]) -> None:
        """Wait until the weights of `info` are here; over NCCL, which writes into the model, paused."""
        arrives = self._config.weights.transport != "nccl"
        if not arrives:
            await self.pause()
        if self._config.weights.transport == "file":
            info = {**info, "ahead": not self._asleep}  # a sleeping engine's memory is promised to it
        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info=dict(info)))
        apart = self._llm.vllm_config.parallel_config.distributed_executor_backend == "mp"
        while arrives and not all(await self._llm.collective_rpc("weights_arrived")):
            await asyncio.sleep(ARRIVAL_BETWEEN_STEPS_S if apart else ARRIVAL_S)

    async def install(self, version: int) -> Installed:
        """Load the received weights and label all later tokens `version`. Running sequences are kept. A
        sleeping engine wakes its weights first, and after the update the KV cache, with which decoding
        starts."""
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
        """Stop decoding and free the memory of weights and KV cache. Sequences are kept, new requests wait.
        The weights move to the host (level 1). Level 2 would drop them, but the base of an adapter is never
        sent again, and nothing is sent without a new version."""
        if self._asleep:
            return
        self.paused_since = time.monotonic()
        await self._llm.sleep(level=1, mode="keep")
        self._asleep = True

    async def wake(self) -> None:
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
        """Digest of all weights, equal on all replicas of a version and layout. A base's is made once."""
        if self._adapter is None:
            return await self._digest("model")
        return _joined([self._base_checksum, await self._digest("adapter")])

    async def _digest(self, part: str) -> str:
        return _joined(await self._llm.collective_rpc("hash_weights", args=(part,)))

    def shutdown(self) -> None:
        self._llm.shutdown(timeout=5.0)

    def _completion(self, output: CompletionOutput, origin: Origin | None) -> Completion:
        tokens = np.asarray(output.token_ids, dtype=np.int32)
        logprobs = np.asarray(output.logprobs, dtype=np.float32)  # numbers, by `Sequences`
        if output.finish_reason not in ("stop", "length"):
            raise RuntimeError(
                f"a completion ended with {output.finish_reason!r}; the request is sampled again"
            )
        return Completion(
            text=completed(
                self._tokenizer, self._silent, output.token_ids, output.finish_reason, self._stop_texts
            ),
            tokens=tokens,
            # Rounding can lift the log-prob of a certain token slightly above zero.
            logprobs=np.minimum(logprobs, np.float32(0.0)),
            finish_reason=cast(FinishReason, output.finish_reason),
            spans=spans_of(output),
            origin=origin,
        )

    @contextmanager
    def _named_when_dead(self) -> Iterator[None]:
        """Turn vLLM's EngineDeadError into UnhealthyError, so that callers need not import vLLM."""
        try:
            yield
        except EngineDeadError as error:
            why = self._notes.reason()
            raise UnhealthyError("the vLLM engine died" + (f": {why}" if why else "")) from error


def _joined(digests: list[str]) -> str:
    return hashlib.sha256(";".join(digests).encode()).hexdigest()
