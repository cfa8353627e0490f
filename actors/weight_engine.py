"""The worker side of the `file` transport: vLLM workers load a published safetensors file, on CPU or GPU.

Registered by `actors/vllm_plugin.py`, so every worker process knows it. The `nccl`
transport is vLLM's own engine and needs nothing from here. An update is refused, and the replica restarted, when
the file's checksum is not the announced one: a torn or foreign file never reaches the model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.platforms import current_platform

BACKEND = "file"


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Nothing to rendezvous: the file system is the channel."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """One published version. `path` is a safetensors file with Hugging Face parameter names."""

    version: int
    path: str
    sha256: str


class FileWeightTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        del init_info

    def start_weight_update(self) -> None:
        # vLLM repacks CPU weights after loading; only the layerwise reload puts a second checkpoint into place.
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load and return when the weights are in place (the base class would synchronise an accelerator)."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        with open(update_info.path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != update_info.sha256:
            raise ValueError(
                f"weights {update_info.path}: checksum {found[:12]} is not the announced {update_info.sha256[:12]}; not loaded"
            )
        with safe_open(update_info.path, framework="pt") as file:
            self.model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        self._repack_tied_heads()

    def _repack_tied_heads(self) -> None:
        """A head tied to the embedding loads nothing of its own, so on CPU it would keep multiplying by its packed
        copy of the old weights. Pack it again from the tensor it shares."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        if not current_platform.is_cpu():
            return
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        """Nothing is held between updates."""
