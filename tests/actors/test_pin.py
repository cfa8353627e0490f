"""A replica that an evaluation keeps at one version, with timers in place of vLLM."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from hora_rl.actors.generator import pin
from hora_rl.actors.generator.pin import Pin, keep_pin
from hora_rl.common.errors import NoRoom, PinLost, StaleWeights
from hora_rl.common.live import pin_lease as lease
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.common.types import BELOW_TRAINING, Pinned, Prompt, SamplingRequest
from hora_rl.common.weights.versions import Manifest, announce, check_file
from tests.support.held_engine import JOIN, NAME, held

OTHER = "generator/b"
PROMPT = Prompt(0, "1+1", "2", np.zeros(3, np.int32))


def request(pinned: Pinned | None = None) -> SamplingRequest:
    return SamplingRequest(PROMPT, 1, 0, BELOW_TRAINING if pinned else 0, pinned=pinned)


def test_a_pin_begins_though_the_learner_died_after_its_roll_call() -> None:
    it = Pin(NAME, 0.0)
    it.promise()
    it.ask(Pinned(NAME, 40))
    it.begin(40)
    assert it.version == 40


def test_a_pinned_replica_answers_its_evaluation_alone() -> None:
    it = Pin(NAME, 60.0)
    it.check(request())
    for wrong in (Pinned(NAME, 40), Pinned(OTHER, 40)):
        with pytest.raises(PinLost):
            it.check(request(wrong))
    it.ask(Pinned(NAME, 40))
    it.begin(40)
    it.check(request(Pinned(NAME, 40)))
    with pytest.raises(NoRoom, match="pinned at version 40"):
        it.check(request())
    with pytest.raises(PinLost):
        it.check(request(Pinned(NAME, 39)))
    for other in (Pinned(OTHER, 40), Pinned(NAME, 50), None):
        it.ask(Pinned(NAME, 40))
        it.begin(41)
        assert it.version is not None
        it.ask(other)
        assert it.version is None, other


async def test_over_files_a_pinned_replica_keeps_its_weights_and_pulls_the_newest_at_the_end(
    redis_url: str, tmp_path: Path
) -> None:
    client = connect_async(redis_url)
    weights, engine = held("file", client, "pinned")

    def publish(version: int) -> dict[str, Any]:
        path = tmp_path / f"{version}.safetensors"
        path.write_bytes(b"%d" % version)
        digest = blake3(path.read_bytes()).hexdigest()
        manifest = Manifest("pinned", version, str(path), digest, path.stat().st_size)
        check_file(manifest.update_info()).close()
        announce(connect(redis_url), manifest)
        return manifest.update_info()

    await weights.note_pin(Pinned(NAME, 4))
    await weights.update(publish(4), 4, "")
    await weights.update(publish(5), 5, "")
    assert (weights.version, engine.did) == (4, ["install 4"])
    assert weights.state()["pinned"] == 4
    assert weights.state()["state"] == "pinned at v4 for an evaluation"
    assert weights.confirm(5)["version"] == 4, "no failure of the update"
    began = asyncio.get_running_loop().time()
    with pytest.raises(StaleWeights):
        await weights.reach(5)
    assert asyncio.get_running_loop().time() < began + 1.0, "the request is free for another replica"
    engine.trouble["receive"] = Exception("the file cannot be opened")  # as vLLM says it
    await weights.note_pin(None)
    assert (weights.version, weights.failure) == (4, None), "leases are read on"
    engine.trouble.clear()
    await weights.reach(5)
    assert (weights.version, weights.state()["state"]) == (5, "serving")
    assert "pinned" not in weights.state()
    await client.aclose()


async def test_over_gloo_a_pinned_replica_is_no_member_and_a_member_always_takes_part() -> None:
    weights, engine = held("gloo")
    assert weights.roll_call(1) == {"replica": NAME, "version": 0, "pinned": False}
    await weights.join(JOIN, (NAME, OTHER), "g")
    await weights.note_pin(Pinned(NAME, 0))
    assert weights.pin.version is None, "the group would wait for it"
    engine.arrive.clear()
    update = asyncio.create_task(weights.update({}, 1, "g"))
    await asyncio.sleep(0.01)
    await weights.note_pin(Pinned(NAME, 1))
    engine.arrive.set()
    await update
    weights.confirm(1)
    assert weights.roll_call(2) == {"replica": NAME, "version": 1, "pinned": True}
    await weights.join(JOIN, (OTHER,), "h")
    await weights.update({}, 2, "h")
    await weights.update({}, 2, "g")
    assert engine.did == ["install 1"]
    assert "released" not in weights.state()
    await weights.note_pin(None)
    assert weights.state()["released"], "not late yet"
    assert weights.roll_call(3) == {"replica": NAME, "version": 1, "pinned": False}
    await weights.join(JOIN, (NAME, OTHER), "i")
    await weights.update({}, 3, "i")
    assert engine.did == ["install 1", "install 3"]
    assert "released" not in weights.state()
    weights.confirm(3)
    weights.roll_call(3)  # of a learner that repeats steps: nothing comes
    await weights.note_pin(Pinned(NAME, 3))
    assert weights.pin.version == 3


async def test_the_last_version_reaches_a_pinned_replica_over_gloo_and_ends_what_counted_on_it() -> None:
    weights, engine = held("gloo")
    await weights.note_pin(Pinned(NAME, 0))
    await weights.join(JOIN, (NAME,), "g")
    await weights.update({}, 9, "g")
    assert engine.did == ["install 9"]
    with pytest.raises(PinLost):
        weights.pin.check(request(Pinned(NAME, 0)))


async def test_a_lease_not_renewed_ends_by_itself(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_S", 1.5)
    monkeypatch.setattr(pin, "POLL_S", 0.02)
    async with asyncio.timeout(20):
        client = connect_async(redis_url)
        weights, _ = held("gloo", client, "pinned")
        watching = asyncio.create_task(keep_pin(weights.note_pin, client, "pinned"))
        await lease.ask(client, "pinned", Pinned(NAME, 0))
        while weights.pin.version is None:
            await asyncio.sleep(0.01)
        for _ in range(4):
            await asyncio.sleep(0.5)
            await lease.ask(client, "pinned", Pinned(NAME, 0))
            assert weights.pin.version == 0, "renewed"
        while weights.pin.version is not None:
            await asyncio.sleep(0.01)
        assert not await client.exists(Keys("pinned").pin)
        watching.cancel()
        await client.aclose()
