"""vLLM's part of the transports: its workers load a published safetensors file, or receive the learner's
broadcast in a transfer group; over NCCL the learner sends with vLLM's packing. The only file of this folder
that imports vLLM; `actors/generator/vllm_plugin.py` registers the transports in every worker.

Over `file` and `gloo` a model is never loaded in part: the replica checks a file before loading
(`announcement.check_file`), and a broadcast is loaded after its last tensor. Generation continues until then.
Over `nccl` vLLM's engine writes into the model while generation is paused."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLWeightTransferEngine,
    NCCLWeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer
from vllm.platforms import current_platform
from vllm.utils.nccl import unpinned_nccl_env as unpinned_nccl_env

from hora_rl.common.config import PACKED_BYTES
from hora_rl.common.errors import UNREACHED
from hora_rl.common.weights.file_receiver import DeviceCopies, Tensors, mapped
from hora_rl.common.weights.group import Backend, PackedGroup, member_group


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """Empty: files need no rendezvous."""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """One published version. `path` is a safetensors file with Hugging Face parameter names. `ahead`: it may
    be copied to a GPU in one piece before loading."""

    version: int
    path: str
    ahead: bool = False


@dataclass
class GroupInitInfo(WeightTransferInitInfo):
    """Address of the learner's rendezvous, and the rank of the replica's first worker, `rank_offset`. The
    learner has rank 0."""

    master_address: str
    master_port: int
    world_size: int
    rank_offset: int
    join_s: float
    limit_s: float


def _joined(backend: Backend, info: GroupInitInfo, worker: int) -> Any:
    join, limit = timedelta(seconds=info.join_s), timedelta(seconds=info.limit_s)
    address, port = info.master_address, info.master_port
    try:
        store = TCPStore(address, port, timeout=join, wait_for_workers=False)
    except RuntimeError as error:  # torch.distributed's errors of stores and networks
        raise RuntimeError(f"{UNREACHED} at {address}:{port}: {error}") from error
    return member_group(backend, store, info.rank_offset + worker, info.world_size, join, limit, address)


def check_loaded(model: torch.nn.Module) -> None:
    """Raise RuntimeError if a layerwise reload loaded only some layers of a stack.

    vLLM drops tensors with unknown names and keeps the old weights. A stack without any new weights, such as
    an image encoder, belongs to the base model."""
    from vllm.model_executor.layers.attention import is_deferred_attention_layer
    from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO

    loaded, left_out = set[str](), dict[str, str]()
    for name, layer in model.named_modules():
        parameters, stack = [*layer.parameters(recurse=False)], _stack(name)
        if not parameters or stack is None or is_deferred_attention_layer(layer):
            continue
        info = LAYERWISE_INFO[layer]
        # A completely loaded layer has been processed, and its record reset.
        if info.load_numel_total is None or info.load_numel > 0:
            loaded.add(stack)
        else:
            left_out[name] = stack
    if missing := [name for name, stack in left_out.items() if stack in loaded]:
        raise RuntimeError(
            f"{len(missing)} layers of {type(model).__name__} got no weights of the learner's, such as "
            f"{missing[0]}: vLLM does not know the names that its parameters have in files of transformers"
        )


def _stack(name: str) -> str | None:
    """The stack of blocks that contains the layer, such as `model.layers`; None outside a stack."""
    parts = name.split(".")
    return next((".".join(parts[:i]) for i, part in enumerate(parts) if part.isdigit()), None)


class _Arriving(WeightTransferEngine[Any, Any]):
    """Loads a version after all its weights have arrived, on a separate thread."""

    _arriving: Future[Tensors] | None = None

    def start_weight_update(self) -> None:
        """Does nothing: a failed transfer leaves the model unchanged."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Start the transfer and return immediately (the base class would synchronize an accelerator). The
        model runs meanwhile."""
        self.receive_weights(self.parse_update_info(update_info))

    def _begin(self, receive: Callable[[], Tensors]) -> None:
        aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
        self._arriving = aside.submit(receive)
        aside.shutdown(wait=False)

    def arrived(self) -> bool:
        """Whether all weights have arrived. Raises the error of a failed transfer."""
        assert self._arriving is not None
        if not self._arriving.done():
            return False
        if (error := self._arriving.exception()) is not None:
            self._arriving = None  # drops the partly received weights
            raise error
        return True

    def weights(self) -> Tensors:
        """The received weights. Can be called once."""
        assert self._arriving is not None
        arriving, self._arriving = self._arriving, None
        return arriving.result()

    def finish_weight_update(self) -> None:
        # vLLM repacks CPU weights after loading; only the layerwise reload can load a second checkpoint.
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        self._forget_packed_experts()
        initialize_layerwise_reload(self.model)
        self.model.load_weights(self.weights())
        check_loaded(self.model)
        finalize_layerwise_reload(self.model, self.model_config)
        self._repack_tied_heads()

    def _forget_packed_experts(self) -> None:
        """On a CPU, experts would treat new weights as packed ones: drop the kernel, so vLLM sets it up
        again."""
        from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

        if not current_platform.is_cpu():
            return
        for module in self.model.modules():
            if isinstance(method := getattr(module, "quant_method", None), FusedMoEMethodBase):
                method.moe_kernel = None

    def _repack_tied_heads(self) -> None:
        """On a CPU, a head tied to the embedding would keep its packed copy of the old weights: pack it
        again."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        if not current_platform.is_cpu():
            return
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        """Does nothing: no resources are held between updates."""


class FileWeightTransferEngine(_Arriving):
    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo
    _copies: DeviceCopies | None = None

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        del init_info

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        # An open file stays readable after newer versions replace it.
        path, ahead = update_info.path, update_info.ahead
        if self.device.type != "cuda":
            self._arriving = Future()
            self._arriving.set_result(mapped(path))
            return
        copies = self._copies = self._copies or DeviceCopies(self.device)
        self._begin(lambda: copies.receive(path, ahead=ahead))

    def finish_weight_update(self) -> None:
        super().finish_weight_update()
        if self._copies is not None:
            torch.cuda.empty_cache()  # the copy: a learner may be on the same card


class GlooWeightTransferEngine(_Arriving):
    init_info_cls = GroupInitInfo
    update_info_cls = NCCLWeightTransferUpdateInfo  # vLLM's trainer side sends the same for both
    _group: Any = None

    def init_transfer_engine(self, init_info: GroupInitInfo) -> None:
        """Join the learner's group. `Engine.init_transfer` has left the previous one."""
        self._group = _joined("gloo", init_info, self.parallel_config.rank)

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        if self._group is None:
            raise RuntimeError("weights came before this worker joined a transfer group")
        self._begin(lambda: self._receive(update_info))

    def _receive(self, info: NCCLWeightTransferUpdateInfo) -> list[tuple[str, torch.Tensor]]:
        received = []
        with ExitStack() as broken_off:
            broken_off.callback(self.shutdown)  # Gloo broadcasts along a tree: members below would wait
            for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
                tensor = torch.empty(shape, dtype=getattr(torch, dtype))
                self._group.broadcast(tensor, 0).wait()
                received.append((name, tensor))
            broken_off.pop_all()
        return received

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.shutdown()
            self._group = None


class NcclEngine(NCCLWeightTransferEngine):
    """vLLM's engine in a group with time limits."""

    init_info_cls = GroupInitInfo  # type: ignore[assignment]

    def init_transfer_engine(self, init_info: GroupInitInfo) -> None:  # type: ignore[override]
        """Join the learner's group, which packs tensors into chunks of the same size."""
        self.packed, self.packed_buffer_size_bytes = True, PACKED_BYTES
        with unpinned_nccl_env():
            self.model_update_group = PackedGroup(  # type: ignore[assignment]
                _joined("nccl", init_info, self.parallel_config.rank)
            )

    def finish_weight_update(self) -> None:
        """Raises RuntimeError if a layer got no weights; the model, and so the replica, is broken then."""
        check_loaded(self.model)
        super().finish_weight_update()


def send_packed(tensors: Iterable[tuple[str, torch.Tensor]], group: Any) -> None:
    """Broadcast from rank 0 of the NCCL `group` what `NcclEngine` of each worker receives."""
    packed_nccl_broadcast_producer(
        iter(tensors), PackedGroup(group), 0, lambda pair: pair[1], buffer_size_bytes=PACKED_BYTES
    )
