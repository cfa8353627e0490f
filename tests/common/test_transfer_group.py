"""When a transfer group sends a version again; a member that is killed in an update costs itself alone.

Members are processes that do over Gloo what a replica's worker does, by the same functions."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE
from typing import Any

import pytest
import torch

from hora_rl.common.live.redis import connect
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.common.load import ROOT, load
from hora_rl.common.weights.announcement import BroadcastClient
from hora_rl.common.weights.host_memory import Snapshot
from hora_rl.deploy.machine.redis_server import RedisServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(250)]  # vLLM takes seconds to import


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    return connect(redis_server.url)


def group(client: Any, sent_s_ago: float) -> Any:
    """A group that broadcast a version then, when no replica was there."""
    from hora_rl.common.weights.group_sender import TransferGroup

    config = load("tiny", ["run.name=again", "weights.transport=gloo"])
    clock = iter([time.time() - sent_s_ago])
    made = TransferGroup(config, client, BroadcastClient(1.0), lambda: next(clock, None) or time.time())
    assert made.send(Snapshot(7, [], torch.device("cpu"))) == []
    return made


def test_a_version_is_sent_again_when_a_replica_that_runs_holds_less(client: Any) -> None:
    sent = group(client, 30.0)
    assert not sent.is_behind(7), "no replica, nobody to send to"
    heartbeat_now(client, "again", "generator/a", {"version": 7})
    heartbeat_now(client, "again", "verifier/c", {"version": 0})
    assert not sent.is_behind(7)
    heartbeat_now(client, "again", "generator/b", {"version": 6})
    assert sent.is_behind(7)


@pytest.mark.parametrize("sent_s_ago", [1.0, -30.0])
def test_nothing_is_sent_again_too_soon_or_for_a_word_from_before(client: Any, sent_s_ago: float) -> None:
    heartbeat_now(client, "again", "generator/b", {"version": 0})
    assert not group(client, sent_s_ago).is_behind(7)


MEMBER = """
import json, os, signal, sys
from datetime import timedelta
import torch
from torch.distributed import TCPStore
from hora_rl.common.weights.group import meet, member_group

dies, group = sys.argv[1], None

def at(point):
    if point == dies:
        os.kill(os.getpid(), signal.SIGKILL)

def joined(info, rank):
    at("before it joins")
    join, limit = timedelta(seconds=info["join_s"]), timedelta(seconds=info["limit_s"])
    store = TCPStore(info["master_address"], info["master_port"], timeout=join, wait_for_workers=False)
    if dies == "before it connects":
        meet(store, rank, info["world_size"], join)
        at(dies)
    group = member_group("gloo", store, rank, info["world_size"], join, limit, info["master_address"])
    at("after it joined")
    return group

print("ready", flush=True)
for line in sys.stdin:
    asked, answer = json.loads(line), "done"
    try:
        if "rank" in asked:
            group = joined(asked["info"], asked["rank"])
        else:
            for number, shape in enumerate(asked["info"]["shapes"]):
                if number == 2:
                    at("in the middle of a broadcast")
                got = torch.empty(shape)
                group.broadcast(got, 0).wait()
            answer = float(got.flatten()[0])
            at("after a broadcast")
    except RuntimeError as error:
        if group is not None:
            group.shutdown()
        answer = "broke off"
    print(json.dumps(answer), flush=True)
"""


class Members:
    """What `BroadcastClient` reaches: a process for each name, which dies where it is told."""

    def __init__(self, deaths: dict[str, str]) -> None:
        self.running = {
            name: subprocess.Popen(
                [sys.executable, "-c", MEMBER, dies], stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT
            )
            for name, dies in deaths.items()
        }
        for name in self.running:
            assert self._answer(name) == "ready\n"
        self.held = dict.fromkeys(deaths, 0)
        self.got: dict[str, float] = {}

    def roll_call(self) -> dict[str, int]:
        return {name: self.held[name] for name, p in self.running.items() if p.poll() is None}

    def join(self, info: dict[str, Any], members: tuple[str, ...], group: str) -> None:
        self._all({n: {"info": info, "rank": 1 + i} for i, n in enumerate(members)})

    def update(self, info: dict[str, Any], version: int, group: str) -> None:
        answers = self._all({name: {"info": info} for name in self.roll_call()})
        values = {name: float(answer) for name, answer in answers.items() if answer[0].isdigit()}
        self.got |= values
        self.held |= dict.fromkeys(values, version)

    def confirm(self, version: int) -> list[Any]:
        return [n for n in self.roll_call() if self.held[n] == version]

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def _all(self, requests: dict[str, dict[str, Any]]) -> dict[str, str]:
        """The answers of those that live to give one."""
        with ThreadPoolExecutor(len(requests) or 1) as threads:
            answers = threads.map(self._ask, requests, requests.values())
            return {name: answer for name, answer in zip(requests, answers, strict=True) if answer}

    def _ask(self, name: str, what: dict[str, Any]) -> str:
        to = self.running[name].stdin
        try:
            to.write(json.dumps(what) + "\n")
            to.flush()
        except BrokenPipeError:
            return ""
        return self._answer(name)

    def _answer(self, name: str) -> str:
        answer = self.running[name].stdout.readline()
        if not answer:
            self.running[name].wait()
        return answer


@pytest.fixture
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    made = Members({"generator/a": "", "generator/b": request.param, "generator/c": ""})
    yield made
    made.end()


@pytest.mark.parametrize(
    "members",
    [
        pytest.param("before it joins", marks=pytest.mark.slow),
        "before it connects",
        pytest.param("after it joined", marks=pytest.mark.slow),
        "in the middle of a broadcast",
        pytest.param("after a broadcast", marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_a_killed_member_costs_itself_and_the_others_get_the_version(members: Members) -> None:
    from hora_rl.common.weights.group_sender import TransferGroup

    settings = ["run.name=r", "weights.transport=gloo", "weights.update_limit_s=16"]
    group = TransferGroup(load("tiny", settings), None, members)  # type: ignore[arg-type]
    for version in (1, 2):
        tensors = [(f"t{i}", torch.full((256, 256), float(version))) for i in range(6)]
        began = time.monotonic()
        confirmed = group.send(Snapshot(version, tensors, torch.device("cpu")))
        assert time.monotonic() - began < 60
        assert {"generator/a", "generator/c"} <= {*confirmed}
        assert members.got["generator/a"] == members.got["generator/c"] == version
    assert members.running["generator/b"].poll() is not None
    assert all(members.running[f"generator/{name}"].poll() is None for name in "ac")


@pytest.mark.parametrize("members", [""], indirect=True)
def test_members_of_a_learner_that_dies_break_off(members: Members) -> None:
    """No vLLM here: the learner's place is a process that is killed in the middle."""
    script = (
        "import sys, os, json, signal, torch\n"
        "from datetime import timedelta\n"
        "from torch.distributed import TCPStore\n"
        "from hora_rl.common.weights.group import member_group\n"
        "s = timedelta(seconds=20)\n"
        "store = TCPStore('127.0.0.1', 0, is_master=True, timeout=s, wait_for_workers=False)\n"
        "print(store.port, flush=True)\n"
        "group = member_group('gloo', store, 0, 4, s, s, '127.0.0.1')\n"
        "group.broadcast(torch.zeros(4), 0).wait()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    learner = subprocess.Popen([sys.executable, "-c", script], stdout=PIPE, text=True, cwd=ROOT)
    target = {"master_address": "127.0.0.1", "master_port": int(learner.stdout.readline())}
    target |= {"world_size": 4, "join_s": 20, "limit_s": 20}
    members.join(target, tuple(members.running), "g")
    members.update({"shapes": [[4], [4]]}, 1, "g")
    learner.wait()
    assert members.got == {}
    assert all(process.poll() is None for process in members.running.values())
