"""A real vLLM engine receives weights from a real Gloo group: whole, or not at all."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.load import load
from tests.support.engines import engine_of


class OneReplica:
    """The broadcast client for one engine in this process, which does what a generator replica does."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._loop, self._update = engine, asyncio.get_running_loop(), asyncio.Lock()
        self.held = 0
        self.broken_off = 0
        self.arriving: Any = None

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def roll_call(self) -> dict[str, int]:
        return {"generator/only": self.held}

    def join(self, info: dict[str, Any], members: tuple[str, ...], group: str) -> None:
        assert members == ("generator/only",)
        self._run(self._join(info))

    async def _join(self, info: dict[str, Any]) -> None:
        async with self._update:
            await self._engine.init_transfer(info)

    def update(self, info: Any, version: int, group: str) -> None:
        self._run(self._receive(info, version))

    async def _receive(self, info: Any, version: int) -> None:
        async with self._update:
            self.arriving = info
            try:
                await self._engine.receive(info)
            except Exception:  # noqa: BLE001  counted, whatever it is
                self.broken_off += 1
            else:
                await self._engine.install(version)
                self.held = version
            finally:
                self.arriving = None

    def confirm(self, version: int) -> list[Any]:
        return [{"version": self.held, "pause_s": 0.0}]


def snapshot(
    config: Config, version: int, factor: float = 1.0, breaks: int = 0, gate: threading.Event | None = None
) -> Any:
    """The initial weights times `factor`; sending them breaks off `breaks` times, or waits for `gate`."""
    from hora_rl.common.weights.group_sender import Snapshot

    class Breaking(Snapshot):
        left = breaks

        def __iter__(self) -> Any:
            for i, pair in enumerate(super().__iter__()):
                if i == 3 and self.left:
                    self.left -= 1
                    raise ConnectionError("a member died")
                if i == 3 and gate is not None:
                    gate.wait(60)
                yield pair

    tensors = load_file(Path(config.model.path) / "model.safetensors")
    return Breaking(version, [(name, t * factor) for name, t in tensors.items()], torch.device("cpu"))


@pytest.mark.system
@pytest.mark.timeout(280)
async def test_a_broadcast_reaches_the_model_whole_or_not_at_all() -> None:
    from hora_rl.common.weights.group_sender import ATTEMPTS, TransferGroup

    config = load("tiny", ["weights.transport=gloo", "weights.update_limit_s=30"])
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)
    async with engine_of(config) as engine:

        async def held() -> tuple[str, list[list[int]]]:
            answers = await engine.generate(prompt, 4, seed=1, temperature=1.0)
            return await engine.checksum(), [a.tokens.tolist() for a in answers]

        first, replica = await held(), OneReplica(engine)
        group = TransferGroup(config, None, replica)  # type: ignore[arg-type]

        async def send(version: int, **how: Any) -> None:
            await asyncio.to_thread(group.send, snapshot(config, version, **how))

        await send(1)
        assert await held() == first, "the same weights"
        await send(2, factor=0.5)
        second = await held()
        assert second[0] != first[0]
        assert second[1] != first[1]

        await send(3, breaks=ATTEMPTS)  # a warning: no replica's trouble ends the learner
        while replica.broken_off < ATTEMPTS:
            await asyncio.sleep(0.05)
        assert await held() == second, "as it was, and serving"

        await send(4, breaks=1)
        assert await held() == first, "repeated in a group formed anew"

        gate = threading.Event()
        sending = asyncio.create_task(send(5, factor=0.5, gate=gate))
        while replica.arriving is None:
            await asyncio.sleep(0.01)
        assert await held() == first, "generation goes on while weights arrive"
        assert not sending.done()
        gate.set()
        await sending
        assert await held() == second

        await send(3)
        assert await held() == second, "a learner that repeats steps takes nobody back"
