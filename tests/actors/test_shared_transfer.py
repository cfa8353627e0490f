"""A real vLLM engine copies weights that a learner shares (`weights.transport: ipc`): whole, or not at all,
whichever of the two is late or killed. In host memory; on a card only the mapping differs.

vLLM takes seconds to import: the test alone does, not every worker that collects it.
"""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from common.config import Config
from common.errors import UNREACHED
from common.load import load
from common.prompts import load_tokenizer, render

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]
CPU = torch.device("cpu")
# A learner that says where version 1 lies, and stays between two tensors of version 2.
LEARNER = """
import json, sys, time
from typing import Any, cast
import torch
from safetensors.torch import load_file
from common.load import load
from learner.weights.shared_transport import SharedTransport
from pathlib import Path
config = load("tiny", ["weights.transport=ipc"])
class Weights:
    device, passes, hf = torch.device("cpu"), 0, torch.nn.Module()
    def whole(self):
        self.passes += 1
        for i, pair in enumerate(load_file(Path(config.model.path) / "model.safetensors").items()):
            if self.passes == 2 and i == 3:
                print("between two tensors", flush=True)
                time.sleep(300)
            yield pair
shared = SharedTransport(config, cast(Any, Weights()), cast(Any, None), cast(Any, None))
shared.take()
print(json.dumps(shared._info(9)), flush=True)
shared.take()
"""


class Weights:
    """The learner's engine: the initial weights times `factor`."""

    device = CPU
    hf = torch.nn.Module()

    def __init__(self, config: Config) -> None:
        self._initial = load_file(Path(config.model.path) / "model.safetensors")
        self.factor = 1.0

    def whole(self) -> Any:
        return ((name, tensor * self.factor) for name, tensor in self._initial.items())


class OneReplica:
    """The broadcast client for the weights of one replica in this process."""

    def __init__(self, held: Any) -> None:
        self._held, self._loop = held, asyncio.get_running_loop()
        self.told = list[dict[str, Any]]()

    def roll_call(self, coming: int, *, pinned: bool) -> dict[str, int]:
        answer = self._held.roll_call(coming)
        return {answer["replica"]: answer["version"]}

    def update(self, info: dict[str, Any], version: int) -> None:
        self.told.append(info)
        asyncio.run_coroutine_threadsafe(self._held.take(info, version, ""), self._loop).result(60)

    def confirm(self, version: int) -> list[Any]:
        return [self._held.confirm(version)]


def through_vllm(info: dict[str, Any]) -> Any:
    """As vLLM carries it between the processes of a GPU's engine, without leave to pickle."""
    from vllm import envs
    from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    assert not envs.VLLM_ALLOW_INSECURE_SERIALIZATION
    sent = MsgpackEncoder().encode(WeightTransferUpdateRequest(update_info=info))
    return MsgpackDecoder(WeightTransferUpdateRequest).decode(sent).update_info


def test_a_version_reaches_the_model_whole_or_not_at_all() -> None:
    from actors.generator.held_weights import HeldWeights
    from actors.generator.vllm_engine import Engine
    from learner.weights.host_copy import Snapshot
    from learner.weights.shared_transport import SharedTransport

    config = load("tiny", ["weights.transport=ipc", "weights.update_limit_s=30"])
    prompt = render(load_tokenizer(config.model.path), "57+68=?", config.data)

    async def run() -> None:
        engine = Engine(config)
        held = HeldWeights(config, engine, cast(Any, None), "generator/only")
        learner, replica = Weights(config), OneReplica(held)
        shared = SharedTransport(config, cast(Any, learner), cast(Any, None), cast(Any, replica))

        async def now() -> tuple[str, list[list[int]], set[int]]:
            answers = await engine.generate(prompt, 4, seed=1, temperature=1.0)
            versions = {span.version for a in answers for span in a.spans}
            return await engine.checksum(), [a.tokens.tolist() for a in answers], versions

        async def send(version: int, factor: float) -> Any:
            learner.factor = factor
            snapshot = Snapshot(version, shared.take(), CPU)
            return await asyncio.to_thread(shared.send, snapshot)

        try:
            await engine.begin()
            first = await now()
            [confirmed] = await send(1, 1.0)
            assert await now() == (*first[:2], {1}), "the same weights"
            assert confirmed["checksum"] == first[0]
            await send(2, 0.5)
            second = await now()
            assert second[0] != first[0]
            assert second[1] != first[1]
            assert second[2] == {2}
            assert through_vllm(replica.told[-1]) == replica.told[-1]

            await send(1, 1.0)
            assert await now() == second, "a learner that repeats steps takes nobody back"

            learner.factor = 1.0
            shared.take()
            info = shared._info(3)
            shapes = [[1], *info["shapes"][1:]]
            await refused(held, {**info, "digest": "0" * 64}, "differs from the learner's own")
            await refused(held, {**info, "shapes": shapes}, r"tensors of .* bytes in a buffer of")
            assert await now() == second, "as it was, and serving"

            await killed_between_two_tensors(held)
            assert await now() == second, "as it was, and serving"
            held.check()

            await send(4, 1.0)
            assert await now() == (*first[:2], {4}), "the next learner's"
        finally:
            engine.shutdown()

    asyncio.run(run())


async def refused(held: Any, info: dict[str, Any], says: str) -> None:
    """vLLM's processes pass on the text of an error and not its type."""
    with pytest.raises(Exception, match=says):
        await held.take(info, 9, "")


async def killed_between_two_tensors(held: Any) -> None:
    """A learner that is told of before, while and after it is killed."""
    env_root = str(Path(__file__).parents[2])
    with subprocess.Popen([sys.executable, "-c", LEARNER], cwd=env_root, stdout=subprocess.PIPE) as process:
        lines: Any = process.stdout
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        try:
            log, said, stays = [await asyncio.to_thread(lines.readline) for _ in range(3)]
            assert b"weights are shared" in log
            info = json.loads(said)
            assert stays == b"between two tensors\n"
            await refused(held, info, "is being overwritten by newer ones")
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            await refused(held, info, UNREACHED)
        finally:
            watchdog.cancel()
            process.kill()
