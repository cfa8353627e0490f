"""Methods added to vLLM's workers (`worker_extension_cls`), for `collective_rpc`. vLLM refuses names that its
worker already has."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from hora_rl.actors.generator.adapter import adapter_tensors, put_adapter, put_zero_adapter
from hora_rl.common.model.adapters import WEIGHTS
from hora_rl.common.weights.tensor_hash import TensorHash

Part = Literal["model", "adapter"]


class WorkerExtension:
    weight_transfer_engine: Any
    model_runner: Any
    _weight_update_active: bool
    _tensor_hash: TensorHash | None = None

    def weights_arrived(self) -> bool:
        """Whether all weights of the current update have arrived. An error ends the update, as in vLLM."""
        with ExitStack() as otherwise:
            otherwise.callback(self._end_update)
            arrived = bool(self.weight_transfer_engine.arrived())
            otherwise.pop_all()
        return arrived

    def install_adapter(self, settings: Mapping[str, object]) -> None:
        """Install the received adapter. vLLM's `finish_weight_update` would remove all adapters instead."""
        try:
            received = {name: tensor.cpu() for name, tensor in self.weight_transfer_engine.weights()}
            put_adapter(self.model_runner.lora_manager, received, settings)
        finally:
            self._end_update()

    def load_adapter(self, folder: str, settings: Mapping[str, object]) -> None:
        """Install the adapter in a folder."""
        from safetensors.torch import load_file

        put_adapter(self.model_runner.lora_manager, load_file(Path(folder) / WEIGHTS), settings)

    def clear_adapter(self) -> None:
        """Install an adapter of zeros."""
        put_zero_adapter(self.model_runner.lora_manager)

    def hash_weights(self, part: Part) -> str:
        """Digest of this worker's model weights or adapter."""
        from vllm.model_executor.model_loader.weight_checksum import _weights

        if self._tensor_hash is None:
            self._tensor_hash = TensorHash()
        if part == "adapter":
            return self._tensor_hash.digest(adapter_tensors(self.model_runner.lora_manager))
        return self._tensor_hash.digest(_weights(self.model_runner.get_model()))

    def _end_update(self) -> None:
        self._weight_update_active = False
        self.weight_transfer_engine.reset_weight_update_target()
