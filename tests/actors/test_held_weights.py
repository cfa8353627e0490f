"""When a replica's weights make it unhealthy, when it sleeps, wakes and starts. Timers replace vLLM."""

import asyncio
import time
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from hora_rl.actors.generator import deployment
from hora_rl.actors.generator.deployment import DEAD_S, is_left, keep_watch, wait_for_card
from hora_rl.common.errors import UNREACHED, DamagedWeights, NoRoom, StaleWeights, UnhealthyError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.common.live.telemetry import HEARTBEAT_S, LEADER, SILENT_S, STEPPING, TO_SLEEP, heartbeat_now
from hora_rl.common.types import BELOW_TRAINING, Prompt, SamplingRequest
from hora_rl.common.weights import held_weights
from hora_rl.common.weights.announcement import Manifest, check_file, mark_of
from hora_rl.common.weights.held_weights import HeldWeights
from tests.support.held_engine import JOIN, NAME, Engine, held, member

NOW = 1e6
LONG_AGO = NOW - 2 * DEAD_S


async def test_one_learner_not_reached_may_have_died_and_two_in_a_row_are_its_own_fault() -> None:
    weights, engine = held()
    unreached = RuntimeError(f"{UNREACHED} at 127.0.0.1:1")
    for trouble, healthy in ((unreached, True), (None, True), (unreached, True), (unreached, False)):
        engine.trouble = {"init_transfer": trouble} if trouble else {}
        with suppress(RuntimeError):
            await weights.join(JOIN, (NAME,), "g")
        assert (weights.failure is None) == healthy


async def test_a_join_that_waited_until_its_group_was_given_up_is_not_tried() -> None:
    weights, engine = await member()
    engine.arrive.clear()
    update = asyncio.create_task(weights.update({}, 1, "g"))
    await asyncio.sleep(0.01)
    joining = asyncio.create_task(weights.join(JOIN, (NAME,), "next"))
    await asyncio.sleep(0.1)
    engine.arrive.set()
    with pytest.raises(TimeoutError):
        await joining
    await update
    assert (engine.joined, weights.failure) == (1, None)
    await weights.update({}, 2, "next")
    assert weights.version == 1, "it is in no group"


@pytest.mark.parametrize(
    ("call", "trouble"),
    [("check_health", UnhealthyError("no token for 121 s")), ("install", ValueError("half loaded"))],
)
async def test_an_unhealthy_replica_ends_by_itself(
    call: str, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(deployment, "EXIT_S", 0.0)
    monkeypatch.setattr(deployment.os, "_exit", ended.append)
    weights, engine = await member()
    await deployment.check_or_exit(weights, engine)  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert ended == []
    engine.trouble[call] = trouble
    if call == "install":
        with pytest.raises(ValueError, match="half loaded"):
            await weights.update({}, 1, "g")
        assert weights.state()["state"] == "failed"
    with pytest.raises(UnhealthyError):
        await deployment.check_or_exit(weights, engine)  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert ended == [1]


def test_evaluations_hold_so_many_places_of_a_replica_and_training_the_others() -> None:
    def request(n: int, priority: int = BELOW_TRAINING) -> SamplingRequest:
        return SamplingRequest(Prompt(0, "1+1", "2", np.zeros(3, np.int32)), n, 0, priority)

    admission = deployment.Admission("generator/a", requests=8, low_priority=8)
    with ExitStack() as inside:
        for each in (request(4), request(4), *(request(16, priority=i) for i in range(6))):
            inside.enter_context(admission.admitted([each]))
            if admission.sampling == 7:
                with pytest.raises(NoRoom), admission.admitted([request(1)]):
                    pass
        with pytest.raises(NoRoom), admission.admitted([request(16, priority=6)]):
            pass
    assert admission.sampling == admission.sampling_low == 0
    with admission.admitted([request(16)]):  # alone it may be larger
        pass


async def test_a_member_that_holds_the_version_meanwhile_takes_part_and_none_goes_back() -> None:
    weights, engine = await member()
    for version in (7, 6, 7, 8):
        await weights.update({}, version, "g")
    assert engine.did == ["install 7", "install 7", "install 8"]


async def test_no_version_is_ever_shown_with_the_checksum_of_another() -> None:
    weights, _ = await member()
    shown = set()
    for version in (1, 2):
        update = asyncio.create_task(weights.update({}, version, "g"))
        while True:
            state = weights.state()
            shown.add((state["version"], state["checksum"]))
            if update.done():
                break
            await asyncio.sleep(0)
        assert (state["pause_s"], state["checksum_s"]) == (0.5, 0.25)
    assert shown == {(0, ""), (1, "sum-1"), (2, "sum-2")}


async def test_a_file_that_is_gone_is_no_fault_of_the_replica(tmp_path: Path) -> None:
    weights, _ = held("file")
    with pytest.raises(StaleWeights):
        await weights.update({"path": str(tmp_path / "old"), "digest": "", "bytes": 1, "version": 1}, 1, "")
    assert weights.failure is None


async def test_a_damaged_file_leaves_the_replica_healthy_on_what_it_has_until_it_is_published_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reads = tmp_path / "00000002.safetensors", list[str]()
    manifest = Manifest("r", 2, str(file), blake3(b"whole").hexdigest(), 5)

    async def newest(*_: Any) -> Manifest:
        return manifest

    def check(info: Any) -> Any:
        reads.append(info["path"])
        return check_file(info)

    monkeypatch.setattr(held_weights, "newest", newest)
    monkeypatch.setattr(held_weights, "check_file", check)
    monkeypatch.setattr(held_weights, "REACH_S", 0.2)
    weights, _ = held("file")
    file.write_bytes(b"whale")
    found = await asyncio.gather(*(weights.reach(2) for _ in range(5)), return_exceptions=True)
    assert [type(error) for error in found] == [DamagedWeights] * 5, "requests that waited together"
    with pytest.raises(StaleWeights):
        await weights.reach(2)
    assert len(reads) == 1, "gigabytes are not read again and again"
    weights.check()
    said = weights.state()
    assert (said["state"], said["version"], said["damaged"]) == ("serving", 0, (2, mark_of(str(file))))
    assert said["notice"]
    with pytest.raises(DamagedWeights):
        await weights.update(manifest.update_info(), 2, "")
    assert weights.failure is None, "the learner pushes the same file"
    file.write_bytes(b"whole")
    await weights.reach(2)
    assert weights.version == 2
    assert not {"damaged", "notice"} & weights.state().keys()


async def test_what_is_loaded_is_the_file_that_was_checked_also_when_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner gives the descriptor of a version that it let go of to a later one."""
    place, loaded = tmp_path / "weights", list[bytes]()
    place.write_bytes(b"right")
    info = {"version": 1, "path": str(place), "digest": blake3(b"right").hexdigest(), "bytes": 5}

    def check(announced: Any) -> Any:
        file = check_file(announced)
        place.unlink()
        place.write_bytes(b"wrong")
        return file

    async def receive(self: Engine, update: Any) -> None:
        loaded.append(Path(update["path"]).read_bytes())

    monkeypatch.setattr(held_weights, "check_file", check)
    monkeypatch.setattr(Engine, "receive", receive)
    weights, _ = held("file")
    await weights.update(info, 1, "")
    assert (weights.version, loaded) == (1, [b"right"])


async def awake(redis: Any = None) -> tuple[HeldWeights, Engine]:
    weights, engine = await member(redis, limit_s=1.0)
    await weights.update({}, 4, "g")
    return weights, engine


async def test_an_update_that_is_late_does_not_wake_the_engine_and_the_next_version_does() -> None:
    weights, engine = await awake()
    await weights.sleep(4)
    assert weights.state()["state"] == "asleep"
    await weights.update({}, 3, "g")
    assert engine.did == ["install 4", "sleep"]
    await weights.update({}, 5, "g")
    assert engine.did == ["install 4", "sleep", "install 5"]
    assert (weights.state()["state"], weights.asleep_since) == ("serving", None)


async def test_an_engine_falls_asleep_at_the_version_of_the_step_and_not_before() -> None:
    weights, engine = await awake()
    sleeping = asyncio.create_task(weights.sleep(5))
    await asyncio.sleep(0.1)
    assert engine.did == ["install 4"]
    await weights.update({}, 5, "g")
    await sleeping
    assert engine.did == ["install 4", "install 5", "sleep"]


@pytest.mark.parametrize("trouble", [RuntimeError("Memory usage increased after sleeping."), None])
async def test_an_engine_that_does_not_fall_asleep_is_unhealthy(trouble: Exception | None) -> None:
    weights, engine = await awake()
    engine.sleep_s, engine.trouble = (0.0, {"sleep": trouble}) if trouble else (30.0, {})
    with pytest.raises((RuntimeError, TimeoutError)):
        await weights.sleep(4)
    assert weights.state()["state"] == "failed"
    assert weights.asleep_since is None


@pytest.mark.parametrize(
    ("state", "age", "since", "left"),
    [
        (STEPPING, 0.0, LONG_AGO, False),
        (STEPPING, SILENT_S + 1, LONG_AGO, False),
        (STEPPING, DEAD_S + 1, LONG_AGO, True),
        (TO_SLEEP, 0.0, LONG_AGO, False),
        ("waiting", 0.0, LONG_AGO, True),
        ("starting", 0.0, LONG_AGO, True),
        ("waiting", DEAD_S - 1, NOW - DEAD_S + 1, False),
        ("waiting", 0.2, NOW - 0.1, False),  # a heartbeat from before it slept
        ("waiting", 0.0, NOW - HEARTBEAT_S / 2, False),
        (None, 0.0, NOW - 1, False),
        (None, 0.0, NOW - DEAD_S - 1, True),
    ],
)
def test_who_is_left_asleep(state: str | None, age: float, since: float, left: bool) -> None:
    beat = {"state": state, "seen": NOW - age} if state else {}
    assert is_left(beat, since, NOW) == left


async def test_it_wakes_by_itself_when_the_learner_waits_and_not_while_it_steps(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "POLL_S", 0.02)
    monkeypatch.setattr(deployment, "HEARTBEAT_S", 0.05)
    client, redis = connect(redis_url), connect_async(redis_url)
    weights, engine = await awake(redis)
    heartbeat_now(client, "watch", LEADER, {"state": STEPPING, "step": 4})
    watch = asyncio.create_task(keep_watch(weights, redis, "watch"))
    await weights.sleep(4)
    await asyncio.sleep(0.3)
    assert engine.did[-1] == "sleep"
    heartbeat_now(client, "watch", LEADER, {"state": "waiting", "step": 5})
    await asyncio.sleep(0.3)
    assert engine.did[1:] == ["sleep", "wake"]
    assert weights.asleep_since is None
    watch.cancel()
    await redis.aclose()


async def test_one_that_was_put_to_sleep_again_meanwhile_sleeps_on() -> None:
    weights, engine = await awake()
    await weights.sleep(4)
    first = weights.asleep_since
    assert first is not None
    await asyncio.sleep(0.01)
    await weights.sleep(4)
    await weights.wake(first)
    assert "wake" not in engine.did


@pytest.mark.parametrize(
    ("state", "seen_s", "starts"),
    [
        (None, 0.0, True),  # there is no learner yet
        (STEPPING, 0.0, False),
        (TO_SLEEP, 0.0, True),  # the learner waits for it
        ("waiting", 0.0, True),
        (STEPPING, SILENT_S + 1, True),  # that learner is dead
    ],
)
async def test_a_replica_starts_only_between_steps(
    redis_url: str, state: str | None, seen_s: float, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, redis = connect(redis_url), connect_async(redis_url)
    client.delete(Keys("start").parts)
    monkeypatch.setattr(time, "time", lambda: NOW)  # a machine that halts for SILENT_S would end the wait
    if state is not None:
        heartbeat_now(client, "start", LEADER, {"state": state})
    monkeypatch.setattr(deployment, "POLL_S", 0.02)
    monkeypatch.setattr(time, "time", lambda: NOW + seen_s)
    with nullcontext() if starts else pytest.raises(TimeoutError):
        await asyncio.wait_for(wait_for_card(redis, "start"), 0.3)
    await redis.aclose()
