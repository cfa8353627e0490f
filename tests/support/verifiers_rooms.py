"""Environments of the library `verifiers` that behave badly, for its own Python; the seat says how."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import verifiers.v1 as vf


class Data(vf.TaskData):
    kind: str


class RoomTask(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def half(self, trace: vf.Trace) -> float:
        if self.data.kind == "rubric":
            raise KeyError("rubric")
        return 0.5


KINDS = ("good", "raises", "hangs", "rewrites", "rubric", "silent", "leaks", "dies")


class Rooms(vf.Taskset[RoomTask, vf.TasksetConfig]):
    def load(self) -> Iterator[RoomTask]:
        for kind in KINDS:
            yield RoomTask(Data(prompt=None, kind=kind), self.config.task)


class RoomConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    other: vf.AgentConfig = vf.AgentConfig()


class Room(vf.Env[RoomConfig]):
    async def run(self, task: RoomTask, agents: vf.Agents) -> None:
        kind = task.data.kind
        print("what an environment prints is no line of ours")
        if kind == "silent":
            return
        async with agents.player.interaction(task) as game:
            await game.turn("n=")
            if kind == "raises":
                raise KeyError("door")
            if kind == "hangs":
                await asyncio.sleep(3600)
            if kind == "dies":
                os._exit(3)
            if kind == "leaks":
                await game.turn(",".join(sorted(os.environ)))
        if kind == "rewrites":
            async with agents.other.interaction(task) as another:
                await another.turn("n=")


__all__ = ["Room", "Rooms"]
