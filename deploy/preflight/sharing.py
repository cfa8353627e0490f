"""Checks of `weights.transport: ipc`: whether learner and generators will be able to share memory."""

from __future__ import annotations

from collections.abc import Iterator

from common.torch_settings import expandable_segments
from deploy.preflight import machine
from deploy.preflight.findings import Finding, Target, must

WHAT = "weights.transport"
REMEDY = "set weights.transport: file, gloo or nccl"


def shared_weights(target: Target) -> Iterator[Finding]:
    """One card for both on this machine, or none, and memory that torch can share."""
    if target.config.weights.transport != "ipc" or not target.trains:
        return
    cards = 0 if target.on_cluster else len(machine.gpus())
    if not target.on_cluster:
        says = f"ipc, for a learner and generators on one card, and this machine has {cards}"
        yield must(cards <= 1, WHAT, says, REMEDY)
    told = expandable_segments() if cards or target.on_cluster else None
    fix = "its memory cannot be mapped by another process: leave expandable_segments out, or " + REMEDY
    yield must(told is None, WHAT, f"ipc, and {told}" if told else "ipc", fix)


def one_machine(target: Target, machines: int) -> Iterator[Finding]:
    """Of a cluster of so many machines: replicas may be placed on any of them."""
    if target.config.weights.transport == "ipc":
        says = f"ipc, for processes of one machine, and the cluster has {machines}"
        yield must(machines == 1, WHAT, says, "set weights.transport: file (shared disk), gloo or nccl")
