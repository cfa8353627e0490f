"""Log-probs kept as numbers against those of vLLM's own table, over vLLM's own front end."""

import time
from typing import Any

import numpy as np
import pytest

from benchmarks.front_end import core_request

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]
STEPS, REQUESTS = 30, 5


def outputs_of(own: bool) -> list[Any]:
    """The completions of requests whose tokens come one to three at a time, from `Sequences` or vLLM's
    table."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreOutput, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
    from vllm.v1.outputs import LogprobsLists

    from hora_rl.actors.generator.engine_records import Sequences

    processor = OutputProcessor(None, log_stats=False)
    if own:
        processor.request_states = Sequences(processor.request_states)
    whole = {"output_kind": RequestOutputKind.FINAL_ONLY, "detokenize": False, "logprobs": 0}
    params = SamplingParams(max_tokens=4 * STEPS, flat_logprobs=not own, **whole)
    names = [f"r{i}" for i in range(REQUESTS)]
    queues = {name: RequestOutputCollector(params.output_kind, request_id=name) for name in names}
    for name in names:
        processor.add_request(core_request(name, params, 6), None, None, 0, queues[name])
    source = np.random.default_rng(0)
    for step in range(STEPS):
        made = []
        for name in names:
            new = int(source.integers(1, 4))
            lists = LogprobsLists(
                source.integers(0, 1000, (new, 1)).astype(np.int32),
                -source.exponential(size=(new, 1)).astype(np.float32),
                np.ones(new, np.int32),
                None,
            )
            tokens = lists.logprob_token_ids[:, 0].tolist()
            last = FinishReason.LENGTH if step == STEPS - 1 else None
            made.append(EngineCoreOutput(name, tokens, new_logprobs=lists, finish_reason=last))
        processor.process_outputs(made, time.monotonic(), None, weight_version=str(step // 10))
    return [queue.get_nowait().outputs[0] for queue in queues.values()]


def test_numbers_are_vllm_s_log_probs_to_the_bit() -> None:
    for ours, theirs in zip(outputs_of(own=True), outputs_of(own=False), strict=True):
        assert len(ours.logprobs) == len(ours.token_ids) > STEPS
        assert ours.logprobs == theirs.logprobs.logprobs
        assert theirs.logprobs.token_ids == ours.token_ids
        assert ours.weight_versions == theirs.weight_versions
        assert ours.finish_reason == theirs.finish_reason == "length"
