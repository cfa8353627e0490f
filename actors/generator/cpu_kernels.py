"""vLLM's compiled layer norms for engines on a CPU.

vLLM has these kernels on all platforms, but on a CPU it relies on a compiler that `enforce_eager` switches
off. PyTorch then starts and joins its threads for each of seven operations. That takes seven times as long as
the kernel, and longer if another process delays a thread.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm import ir
from vllm.platforms import current_platform

PROVIDER = "hora_cpu"
PRIORITY = {op: [PROVIDER, "native"] for op in ("rms_norm", "fused_add_rms_norm")}
"""vLLM's `ir_op_priority`: PyTorch's operations if the kernel does not support the tensors."""


def register_kernels() -> None:
    """Register the kernels with vLLM as `PROVIDER`. Repeated calls do nothing."""
    if PROVIDER in ir.ops.rms_norm.impls:
        return
    current_platform.import_kernels()
    cpu = current_platform.is_cpu()
    ir.ops.rms_norm.register_impl(PROVIDER, supported=cpu, supports_args=_takes)(_rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supported=cpu, supports_args=_takes_sum, inplace=True)(
        _fused_add_rms_norm
    )


def _takes(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return weight is not None and weight.dtype == x.dtype and variance_size is None and x.is_contiguous()


def _takes_sum(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return _takes(x, weight, epsilon, variance_size) and x_residual.is_contiguous()


def _rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, epsilon)
    return out


def _fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual
