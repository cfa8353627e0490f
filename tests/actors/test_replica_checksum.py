"""What a generator replica says about its weights, with a timer in place of vLLM."""

import asyncio
from types import SimpleNamespace
from typing import Any

from actors.generator.deployment import Generator
from common.load import load


class Engine:
    """Weights of version v add up to `sum-v`, after a while."""

    load = SimpleNamespace(running=0, waiting=0, cache=0.0, prefix_hits=0, prefix_queries=0)
    cut = 0
    version = 0

    async def receive(self, info: Any) -> None:
        pass

    async def install(self, version: int) -> Any:
        await asyncio.sleep(0.02)
        self.version = version
        return SimpleNamespace(pause_s=0.5, checksum=f"sum-{version}", checksum_s=0.25)


class Replica(Generator):
    def __init__(self) -> None:
        self._config, self._engine = load("tiny", ["weights.transport=gloo"]), Engine()
        self._version, self._checksum, self._failed, self._pause_s = 0, "", None, 0.0
        self._checksum_s = 0.0
        self._unreached, self._damaged, self._notice = False, None, ""

    def __del__(self) -> None:
        pass


def test_no_version_is_ever_told_with_the_checksum_of_another() -> None:
    replica: Any = Replica()

    async def scenario() -> set[tuple[int, str, float]]:
        told = set()
        for version in (1, 2):
            update = asyncio.create_task(replica._take({}, version))
            while not update.done():
                await asyncio.sleep(0)
                said = replica._state()
                told.add((said["version"], said["checksum"], said["checksum_s"]))
            await update
        said = replica._state()
        told.add((said["version"], said["checksum"], said["checksum_s"]))
        return told

    assert asyncio.run(scenario()) == {(0, "", 0.0), (1, "sum-1", 0.25), (2, "sum-2", 0.25)}
