"""Arguments and environment of an engine on a GPU.

Decoding there is bound by processors, not by the card. So the model runs in a process of its own, beside the
one that schedules: the next step is planned while the card computes this one.
"""

import os
from typing import Any

from hora_rl.common.config import GeneratorConfig


def set_card_environment() -> None:
    """Set what vLLM reads when it starts on a GPU. FlashInfer's kernels are in no pinned package. Where there
    is a CUDA toolkit, it would compile its all-reduce at the start, and its sampler while a run samples."""
    os.environ["VLLM_ALLREDUCE_USE_FLASHINFER"] = "0"
    os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"


def card_args(generator: GeneratorConfig) -> dict[str, Any]:
    """The arguments that HORA sets on GPUs only."""
    own: dict[str, Any] = {
        "distributed_executor_backend": "mp",
        "max_num_batched_tokens": generator.batched_tokens,
        "enable_flashinfer_autotune": False,  # in 16 bits nothing here uses its kernels
    }
    if not generator.enforce_eager:
        own["max_cudagraph_capture_size"] = generator.captured
    if generator.tensor_parallel > 1:
        own["compilation_config"] = {"pass_config": {"fuse_allreduce_rms": False}}
    return own


def without_conflicts(own: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """`own` without the largest graph if `more`, which somebody wrote, says which graphs are captured: vLLM
    refuses two answers."""
    if more.keys() & {"cudagraph_capture_sizes", "compilation_config"}:
        return {name: value for name, value in own.items() if name != "max_cudagraph_capture_size"}
    return own
