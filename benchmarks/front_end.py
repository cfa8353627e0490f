"""Processor time of a replica for each token that its engine sends: vLLM's own front end against ours.

    python -m benchmarks.front_end

Real messages of vLLM are decoded and processed without an engine. Each row is the lower quartile of the steps
and the median of the runs, in which the rows take turns. Trust the ratios.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

SEQUENCES, STEPS, RUNS = 256, 60, 5


def main() -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import envs

    def read_once() -> None:
        envs.enable_envs_cache()

    def read_always() -> None:
        envs.disable_envs_cache()

    rows: Mapping[str, tuple[Callable[[], None], bool]] = {
        "vLLM's own": (read_always, False),
        "environment read once": (read_once, False),
        "log-probs as numbers": (read_always, True),
        "both, as a replica does": (read_once, True),
    }
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(RUNS):
        for name, (prepare, numbers) in rows.items():
            prepare()
            times[name].append(token_s(numbers=numbers))
    for name, seconds in times.items():
        took, of_vllm = statistics.median(seconds), statistics.median(times["vLLM's own"])
        print(f"{name:<26}{took * 1e6:6.2f} µs a token, {took / of_vllm:4.0%}")


def core_request(name: str, params: Any, prompt_tokens: int) -> Any:
    """A request called `name`, with a prompt of so many tokens. `params` are vLLM's `SamplingParams`."""
    from vllm.v1.engine import EngineCoreRequest

    request = EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[1] * prompt_tokens,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    request.external_req_id = name
    return request


def token_s(*, numbers: bool) -> float:
    """Seconds for each token of a step with `SEQUENCES` sequences. `numbers`: with our table of sequences."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
    from vllm.v1.metrics.stats import IterationStats
    from vllm.v1.outputs import LogprobsLists
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from hora_rl.actors.generator.engine_records import Sequences

    processor = OutputProcessor(None, log_stats=True)
    if numbers:
        processor.request_states = Sequences(processor.request_states)
    kind = RequestOutputKind.FINAL_ONLY
    sampling = SamplingParams(logprobs=0, flat_logprobs=True, detokenize=False, output_kind=kind)
    for i in range(SEQUENCES):
        request = core_request(str(i), sampling, 60)
        processor.add_request(request, None, None, 0, RequestOutputCollector(kind, request_id=str(i)))
    encoder, decoder = MsgpackEncoder(), MsgpackDecoder(EngineCoreOutputs)
    source, took = np.random.default_rng(0), []
    for _ in range(STEPS):
        rank = np.ones((1, 1), np.int32)
        values = -source.exponential(size=(SEQUENCES, 1, 1)).astype(np.float32)
        made = [
            EngineCoreOutput(str(i), [5], new_logprobs=LogprobsLists(rank, values[i], rank[0], None))
            for i in range(SEQUENCES)
        ]
        sent = encoder.encode(EngineCoreOutputs(outputs=made, timestamp=time.monotonic(), weight_version="3"))
        message = [bytes(part) for part in sent]
        began = time.thread_time()
        got = decoder.decode(message)
        processor.process_outputs(
            got.outputs, got.timestamp, IterationStats(), weight_version=got.weight_version
        )
        took.append(time.thread_time() - began)
    return sorted(took)[STEPS // 4] / SEQUENCES


if __name__ == "__main__":
    main()
