"""When a generator replica is no longer fit, with stand-ins for vLLM and the end of the process."""

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.generator import deployment as generator
from actors.generator.deployment import Generator
from common.errors import UNREACHED, DamagedWeights, StaleWeights
from common.load import load
from common.weight_versions import Manifest, check_file, mark_of

GROUP = ({"rank_offset": 1, "join_s": 0.05}, ("generator/a",), "g")


class Engine:
    """Joins a group, or raises `trouble`."""

    trouble: Exception | None = None
    joined, cut = 0, 0
    load = SimpleNamespace(running=0, waiting=0, cache=0.0, prefix_hits=0, prefix_queries=0)

    async def receive(self, info: Any) -> None:
        pass

    async def install(self, version: int) -> Any:
        return SimpleNamespace(pause_s=0.0, checksum="sum", checksum_s=0.0)

    async def init_transfer(self, info: Any) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.joined += 1

    async def check_health(self) -> None:
        if self.trouble is not None:
            raise self.trouble


class Replica(Generator):
    def __init__(self) -> None:
        self._config, self._engine = load("tiny", ["weights.transport=gloo"]), Engine()
        self._redis: Any = None
        self._name, self._group, self._update = "generator/a", "", asyncio.Lock()
        self._failed, self._unreached = None, False
        self._version, self._checksum, self._pause_s, self._checksum_s = 0, "", 0.0, 0.0
        self._damaged, self._notice, self._updates = None, "", set()

    def __del__(self) -> None:
        pass


async def join(replica: Any) -> None:
    with suppress(RuntimeError):
        await replica.init_weight_transfer_engine(*GROUP)


def test_one_learner_that_is_not_reached_may_have_died_and_two_in_a_row_are_this_replica_s_fault() -> None:
    async def scenario() -> None:
        replica: Any = Replica()
        unreached = RuntimeError(f"{UNREACHED} at 127.0.0.1:1")
        for trouble, fit in ((unreached, True), (None, True), (unreached, True), (unreached, False)):
            replica._engine.trouble = trouble
            await join(replica)
            assert (replica._failed is None) == fit

    asyncio.run(scenario())


def test_a_join_that_waited_until_its_group_was_given_up_is_not_tried() -> None:
    async def scenario() -> None:
        replica: Any = Replica()
        await replica._update.acquire()
        joining = asyncio.create_task(replica.init_weight_transfer_engine(*GROUP))
        await asyncio.sleep(0.1)
        replica._update.release()
        with pytest.raises(TimeoutError, match="busy with an update"):
            await joining
        assert (replica._engine.joined, replica._failed, replica._group) == (0, None, "")

    asyncio.run(scenario())


@pytest.mark.parametrize("failed", ["loading weights failed", None])
def test_an_unfit_replica_ends_by_itself(failed: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(generator, "EXIT_S", 0.0)
    monkeypatch.setattr(generator.os, "_exit", ended.append)

    async def scenario() -> None:
        replica: Any = Replica()
        await replica.check_health()
        await asyncio.sleep(0.01)
        assert ended == []
        replica._failed = failed
        replica._engine.trouble = RuntimeError("no sequence got a token for 121 s")
        with pytest.raises(RuntimeError, match=failed or "no sequence got a token"):
            await replica.check_health()
        await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert ended == [1]


def test_a_member_that_came_to_hold_the_version_after_the_roll_call_takes_part_and_none_goes_back() -> None:
    taken: list[int] = []

    async def scenario() -> None:
        replica: Any = Replica()
        replica._version = 7

        async def take(info: Any, version: int) -> None:
            taken.append(version)

        replica._take = take
        await replica.init_weight_transfer_engine(*GROUP)
        for version in (6, 7, 8):
            await replica._load_from("g", {}, version)

    asyncio.run(scenario())
    assert taken == [7, 8]


def test_a_file_that_is_gone_is_no_fault_of_the_replica(tmp_path: Path) -> None:
    async def scenario() -> None:
        replica: Any = Replica()
        replica._config = load("tiny", ["weights.transport=file"])
        with pytest.raises(StaleWeights, match="is gone"):
            await replica._take({"path": str(tmp_path / "old"), "sha256": "", "version": 1}, 1)
        assert replica._failed is None

    asyncio.run(scenario())


def test_a_damaged_file_leaves_the_replica_fit_on_what_it_has_until_it_is_published_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reads = tmp_path / "00000002.safetensors", list[str]()
    manifest = Manifest("r", 2, str(file), hashlib.sha256(b"whole").hexdigest(), 5)

    async def newest(*_: Any) -> Manifest:
        return manifest

    def check(info: Any) -> Any:
        reads.append(info["path"])
        return check_file(info)

    monkeypatch.setattr(generator, "newest", newest)
    monkeypatch.setattr(generator, "check_file", check)
    monkeypatch.setattr(generator, "REACH_S", 0.2)

    async def scenario() -> None:
        replica: Any = Replica()
        replica._config = load("tiny", ["weights.transport=file"])
        file.write_bytes(b"whol")
        with pytest.raises(DamagedWeights, match="is not the announced"):
            await replica._reach(2)
        with pytest.raises(StaleWeights, match="holds version 0, the request needs 2"):
            await replica._reach(2)
        assert len(reads) == 1, "gigabytes are not read again and again"
        await replica.check_health()
        said = replica._state()
        assert (said["state"], said["version"], said["damaged"]) == ("serving", 0, (2, mark_of(str(file))))
        assert "it stays on version 0" in said["notice"]
        with pytest.raises(DamagedWeights):
            await replica.update_weights(manifest.update_info(), 2, "")
        assert replica._failed is None, "what the learner pushes is no other"
        file.write_bytes(b"whole")
        await replica._reach(2)
        assert replica._state()["version"] == 2
        assert not {"damaged", "notice"} & replica._state().keys()

    asyncio.run(scenario())
