import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hora_rl.actors.verifier.deployment import Verifier
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import Config, RewardConfig
from hora_rl.common.errors import VerifierUnavailable
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from tests.support.coordination import until

pytestmark = [pytest.mark.system, pytest.mark.core]

QUICK = {
    "tower": "10^{10^{10}}",
    "python power": "$9**9**9$",
    "very long": "1" * 1_000_000,
    "long sum": "1+" * 900 + "1",
    "deep": "(" * 1500 + "1" + ")" * 1500,
    "deep to the limit": r"\frac{1}{" * 39 + "2" + "}" * 39,
    "lone surrogate": "\udc80",
    "factorial": "(10^{9})!",
    "product": r"\prod_{n=1}^{10^{9}} n",
    "many digits": "2^{" + "9" * 1000 + "}",
    "polynomial": "(x+1)^{99999}",
    "binomial": r"\binom{10^9}{5\cdot 10^8}",
    "power": "9^{999999999}+x",
    "nested": r"\left(" * 38 + "1" + r"\right)" * 38,
    "matrix": r"\begin{pmatrix}" + "1&" * 500 + r"1\end{pmatrix}",
}
ENDLESS = r"\sum_{n=1}^{\infty}\frac{\sin n}{n^3}"
"""A gold answer that nothing can be compared with in finite time. Its own text is equal, and any other sum is
not refused."""
Item = tuple[str, str, str]


def right(i: int) -> Item:
    """A right answer that only math-verify can see, different for every i."""
    return "q", tagged(rf"{i} + \frac{{6}}{{14}}"), rf"\frac{{3}}{{7}} + {i}"


def tagged(answer: str) -> str:
    return f"<think>so</think><answer>{answer}</answer>"


def hostile(n: int) -> Item:
    """An answer that takes for ever, different for every n."""
    return "q", tagged(rf"\sum_{{n=1}}^{{\infty}}\frac{{\cos {n}n}}{{n^2}}"), ENDLESS


def running(memory_bytes: int = 2**30, **reward: Any) -> AbstractContextManager[VerifierPool]:
    settings = RewardConfig(**{"time_limit_s": 1.0, **reward})
    return closing(VerifierPool(settings, processes=1, memory_bytes=memory_bytes))


def workers(pid: int) -> set[psutil.Process]:
    """The pool's processes. (The standard library's resource tracker is a child too.)"""
    found = set()
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):  # it has ended
            if "spawn_main" in " ".join(child.cmdline()):
                found.add(child)
    return found


async def test_what_is_too_large_is_a_wrong_answer_that_costs_no_process() -> None:
    with running() as pool:
        await pool.score_batch([right(0)])
        started = time.monotonic()
        for number, (name, answer) in enumerate(QUICK.items(), 1):
            scored = await pool.score_batch([("q", tagged(answer), r"\frac{3}{7}"), right(number)])
            assert [s["accuracy"] for s in scored] == [0.0, 1.0], name
        assert time.monotonic() - started < 20.0
        assert pool.stats()["killed"] == pool.stats()["rebuilt"] == 0


async def test_an_answer_over_its_processor_time_is_wrong_once_and_never_tried_again() -> None:
    with running() as pool:
        for killed in (1, 2, 3):
            before = workers(os.getpid())
            scored = await pool.score_batch([hostile(killed + 1), right(killed)])
            assert [s["accuracy"] for s in scored] == [0.0, 1.0]
            assert pool.stats()["killed"] == killed
            assert len(workers(os.getpid()) - before) == 1  # one worker went for it, not two
        again = [hostile(n) for n in (2, 3, 4)] * 20
        assert {s["accuracy"] for s in await pool.score_batch(again)} == {0.0}
        assert pool.stats()["killed"] == 3


async def test_a_worker_that_the_machine_holds_up_is_no_wrong_answer() -> None:
    """Stopped, it uses no processor time: the caller is told to ask again."""
    with running(time_limit_s=1.0) as pool:
        await pool.score_batch([right(0)])
        (worker,) = workers(os.getpid())
        before = worker.cpu_times().user
        asked = asyncio.create_task(pool.score_batch([hostile(2)]))
        while worker.cpu_times().user < before + 0.1:
            await asyncio.sleep(0.01)
        worker.suspend()
        with pytest.raises(VerifierUnavailable, match=r"verifier\.processes"):
            await asked
        assert await pool.score_batch([right(1)]) == [{"format": 1.0, "accuracy": 1.0}]


async def test_memory_is_bounded_in_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eat = "def eat(problem, completion, gold): return float(len(bytearray(2**28)))\n"
    (tmp_path / "own_verifier_reward.py").write_text(eat)
    monkeypatch.syspath_prepend(tmp_path)
    greedy = {"weights": {"own_verifier_reward:eat": 1.0}, "time_limit_s": 20.0}
    with running(2**27, **greedy) as pool, pytest.raises(ValueError, match=r"eat.*MemoryError"):
        await pool.score_batch([right(0)])
    with running(**greedy) as pool:
        (scored,) = await pool.score_batch([right(0)])
        assert scored["own_verifier_reward:eat"] == 2.0**28


async def test_equal_pairs_are_judged_once() -> None:
    with running() as pool:
        items = [("q", tagged("6/14"), r"\frac{3}{7}")] * 50
        assert all(s["accuracy"] == 1.0 for s in await pool.score_batch(items))
        assert all(s["accuracy"] == 1.0 for s in await pool.score_batch(items))
        assert pool.stats()["verified"] == 1
        assert pool.stats()["cached"] == 99


async def test_a_worker_killed_from_outside_never_makes_a_right_answer_wrong() -> None:
    with running() as pool:
        await pool.score_batch([right(0)])
        for attempt in range(1, 4):
            for worker in workers(os.getpid()):
                worker.kill()
            assert await persistent(pool, [right(attempt)]) == [{"format": 1.0, "accuracy": 1.0}]


async def persistent(pool: VerifierPool, items: list[Item]) -> list[dict[str, float]]:
    """What every caller does: ask again when nothing was judged."""
    for _ in range(5):
        with suppress(VerifierUnavailable):
            return await pool.score_batch(items)
    raise AssertionError("the pool did not come back")


async def test_a_pool_that_cannot_start_a_worker_says_so_and_scores_nothing() -> None:
    with running(memory_bytes=2**80) as pool:  # setrlimit refuses it in every worker
        with pytest.raises(VerifierUnavailable):
            await pool.score_batch([right(0)])
        assert pool.stats()["scored"] == 0


async def test_a_replica_outlives_hostile_answers_says_so_and_leaves_no_process_behind(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Serve makes and ends one."""
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="a"))
    monkeypatch.setattr("hora_rl.actors.replica.serve.get_replica_context", lambda: context)
    monkeypatch.setattr("hora_rl.actors.replica.logs.configure", lambda *_, **__: None)
    raw = {"run": {"name": "judged"}, "model": {"path": "m"}, "data": {"path": "d"}}
    own = {"reward": {"time_limit_s": 1.0}, "verifier": {"processes": 1}}
    config, replica = Config.model_validate(raw | own), object.__new__(Verifier)
    await replica.__init__(config.model_dump(mode="json"), redis_url)

    def told() -> dict[str, Any]:
        return json.loads(connect(redis_url).hget(Keys("judged").parts, "verifier/a") or "{}")

    assert await replica.score([right(0)]) == [{"format": 1.0, "accuracy": 1.0}]
    assert await replica.score([hostile(2)]) == [{"format": 1.0, "accuracy": 0.0}]
    await replica.check_health()
    wanted = {"scored": 2, "killed": 1, "waiting": 0, "processes": 1, "state": "serving", "pid": os.getpid()}
    await until(lambda: wanted.items() <= told().items())
    busy = asyncio.create_task(replica.score([hostile(3)]))
    await until(lambda: told()["waiting"] == 1)
    await busy
    assert await replica.score([right(1)]) == [{"format": 1.0, "accuracy": 1.0}]
    wanted |= {"scored": 4, "killed": 2}
    await until(lambda: wanted.items() <= told().items())
    assert told()["answers_per_s"] >= 0.0
    started, end = workers(os.getpid()), replica.__del__
    assert len(started) == 1
    monkeypatch.delattr("hora_rl.actors.replica.Replica.__del__")
    await end()
    assert not psutil.wait_procs(started, timeout=10)[1]


PARENT = """
import asyncio, os, sys
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import RewardConfig

async def main():
    pool = VerifierPool(RewardConfig(time_limit_s=300.0), processes=2)
    await pool.score_batch([("q", "<answer>6/14</answer>", "3/7")])
    busy = asyncio.create_task(pool.score_batch([ITEM]))
    await asyncio.sleep(0.5)
    print("busy", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    pool.close()
    print("closed", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

if __name__ == "__main__":
    asyncio.run(main())
""".replace("ITEM", repr(hostile(2)))


@pytest.mark.parametrize("end", ["close", "kill"])
def test_no_worker_survives_its_pool_even_when_busy(tmp_path: Path, end: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command, pipe = [sys.executable, str(script)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as parent:
        try:
            assert parent.stdout.readline() == "busy\n"
            started = workers(parent.pid)
            assert len(started) == 2
            if end == "close":
                parent.stdin.write("\n")
                parent.stdin.flush()
                assert parent.stdout.readline() == "closed\n"
            else:
                started |= {*psutil.Process(parent.pid).children(recursive=True)}
                parent.kill()
            _, left = psutil.wait_procs(started, timeout=10)
            assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]
        finally:
            parent.kill()
