"""A real vLLM engine receives weights from a real Gloo group: whole, or not at all.

vLLM takes seconds to import: the test alone does, not every worker that collects it.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from common.load import load
from common.prompts import load_tokenizer, render

LIMIT_S = 30.0


class Source:
    """The model's weights times `factor`; iterating breaks off after `whole` tensors."""

    def __init__(self, folder: Path) -> None:
        self._tensors = load_file(folder / "model.safetensors")
        self.factor, self.whole = 1.0, len(self._tensors)

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self._tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for i, (name, tensor) in enumerate(self._tensors.items()):
            if i == self.whole:
                raise RuntimeError("the learner dies here")
            yield name, tensor * self.factor


class Client:
    """vLLM's weight-sync client for one engine in this process."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._loop = engine, asyncio.get_running_loop()
        self.broken: BaseException | None = None

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * LIMIT_S)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._run(self._engine.init_transfer(init_info))

    def start_weight_update(self) -> None:
        self._run(self._engine.begin_update())

    def update_weights(self, update_info: Any) -> None:
        try:
            self._run(self._engine.receive(update_info))
        except Exception as error:
            self._run(self._engine.abandon_update())
            self.broken = error

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._run(self._engine.end_update(1))


@pytest.mark.system
@pytest.mark.timeout(240)
def test_a_broadcast_reaches_the_model_whole_or_not_at_all() -> None:
    from actors.engine import Engine
    from learner.gloo_transport import GlooTrainerEngine, GlooTrainerInitInfo

    config = load("tiny", ["weights.transport=gloo"])
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)

    async def run() -> None:
        engine = Engine(config)

        async def held() -> tuple[str, list[list[int]]]:
            answers = await engine.generate(prompt, 4, seed=1, temperature=1.0)
            return await engine.checksum(), [a.tokens.tolist() for a in answers]

        async def send(trainer: Any) -> None:
            await asyncio.to_thread(trainer.send_weights)

        try:
            client, source = Client(engine), Source(Path(config.model.path))
            await engine.label(0)
            first = await held()
            place = GlooTrainerInitInfo("127.0.0.1", 2, LIMIT_S, rank=0)
            trainer = await asyncio.to_thread(
                GlooTrainerEngine.trainer_init, place, client=client, source=source
            )
            await send(trainer)
            assert await held() == first, "the same weights"
            source.factor = 0.5
            await send(trainer)
            second = await held()
            assert second[0] != first[0]
            assert second[1] != first[1]

            source.factor, source.whole = 1.0, 3
            with pytest.raises(RuntimeError, match="the learner dies here"):
                await send(trainer)
            trainer.shutdown()
            while client.broken is None:
                await asyncio.sleep(0.05)
            assert await held() == second, "as it was, and serving"

            source.whole = -1
            again = await asyncio.to_thread(
                GlooTrainerEngine.trainer_init, place, client=client, source=source
            )
            await send(again)
            assert await held() == first, "a group formed anew"
            again.shutdown()
        finally:
            engine.shutdown()

    asyncio.run(run())
