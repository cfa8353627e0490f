"""The weights of a replica over an engine that only notes what it is asked."""

import asyncio
from typing import Any

from hora_rl.common.config import WeightsConfig
from hora_rl.common.weights.held_weights import HeldWeights, Installed

NAME = "generator/a"
JOIN: dict[str, Any] = {"rank_offset": 1, "join_s": 0.05}


class Engine:
    """Notes in `did` what it installed and how it slept. Weights of version v add up to `sum-v`. A call named
    in `trouble` raises that error; weights arrive while `arrive` is set."""

    def __init__(self) -> None:
        self.did, self.joined = list[str](), 0
        self.trouble = dict[str, Exception]()
        self.sleep_s = 0.0
        self.arrive = asyncio.Event()
        self.arrive.set()

    def _fail(self, call: str) -> None:
        if call in self.trouble:
            raise self.trouble[call]

    async def init_transfer(self, info: Any) -> None:
        self._fail("init_transfer")
        self.joined += 1

    async def receive(self, info: Any) -> None:
        self._fail("receive")
        await self.arrive.wait()

    async def install(self, version: int) -> Installed:
        self._fail("install")
        await asyncio.sleep(0.02)
        self.did.append(f"install {version}")
        return Installed(0.5, f"sum-{version}", 0.25)

    async def sleep(self) -> None:
        await asyncio.sleep(self.sleep_s)
        self._fail("sleep")
        self.did.append("sleep")

    async def wake(self) -> None:
        self.did.append("wake")

    async def check_health(self) -> None:
        self._fail("check_health")


def held(
    transport: str = "gloo", redis: Any = None, run: str = "r", limit_s: float = 60.0
) -> tuple[HeldWeights, Engine]:
    """Weights of `NAME` that are in no group yet, and their engine."""
    settings, engine = WeightsConfig(transport=transport, update_limit_s=limit_s), Engine()
    return HeldWeights(settings, 1, engine, redis, run, NAME), engine


async def member(redis: Any = None, limit_s: float = 60.0) -> tuple[HeldWeights, Engine]:
    """Weights that are alone in group g."""
    weights, engine = held(redis=redis, limit_s=limit_s)
    await weights.join(JOIN, (NAME,), "g")
    return weights, engine
