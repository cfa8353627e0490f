"""The process group of learner ranks on one machine. The ranks rendezvous through a file, so no port is
opened.

Ray Train would use torch's TCPStore, which listens on all interfaces without a password.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import ray
from ray._common.network_utils import is_localhost
from ray.train.torch import TorchConfig
from ray.train.torch.config import (
    _set_torch_distributed_env_vars,
    _setup_torch_process_group,
    _TorchBackend,
)


class FileBackend(_TorchBackend):
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        """Create the process group of `worker_group`, on this machine; called again after each restart."""
        session = Path(ray._private.worker._global_node.get_session_dir_path())
        worker_group.execute(_set_torch_distributed_env_vars)
        size = len(worker_group)
        common = {
            "backend": backend_config.backend,
            "world_size": size,
            "init_method": f"file://{session / f'ranks-{uuid.uuid4().hex}'}",
            "timeout_s": backend_config.timeout_s,
        }
        joining = [
            worker_group.execute_single_async(rank, _setup_torch_process_group, world_rank=rank, **common)
            for rank in range(size)
        ]
        ray.get(joining)


class FileConfig(TorchConfig):
    @property
    def backend_cls(self) -> type[FileBackend]:
        return FileBackend


def torch_config(backend: str) -> TorchConfig:
    """Config of `backend`, through a file if Ray's node is on loopback, as under `hora run`; else through a
    port of rank 0's machine."""
    local = is_localhost(ray.util.get_node_ip_address())
    return FileConfig(backend=backend) if local else TorchConfig(backend=backend)
