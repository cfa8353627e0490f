"""Everything that can happen to a run, in random order until the time is up, and an audit of each run.

    make test-chaos                                     # two hours
    CHAOS_HOURS=0.4 CHAOS_SEED=7 make test-chaos

Every fault is drawn before one is drawn again. The seed fixes settings and order; moments are the machine's.
A run ends in order by itself, or `--resume` ends it: every group trained in exactly one surviving step, no
budget lost, no process left.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from tests.support.small_disk import fill_up, small_disk
from tests.system.conftest import LiveRun, runs

HOURS, SEED = float(os.environ.get("CHAOS_HOURS", "2")), int(os.environ.get("CHAOS_SEED", "0"))
STEPS, APART, FROZEN_S, SHORT_S, DISK_MIB = 40, 3, 20.0, 10.0, 1536
FROZEN = ("generator", "engine", "coordinator", "verifier", "redis", "learner")
KILLED = (*FROZEN, "verifier worker", "controller")
# Plain text decides nearly all answers of the demo: without work a verifier starts no worker.
OWN_REWARD = {"reward.weights": "{format: 0.5, accuracy: 0.5, 'tests.system.own_reward:brevity': 0.01}"}

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(int(3600 * HOURS) + 3600)]


def junk(run: LiveRun, chance: random.Random) -> None:
    """Entries that the run never pushed, some with the names of its groups."""
    client, keys = connect(run.redis_url()), Keys("live")
    with client.pipeline(transaction=False) as pipe:
        for i in range(chance.randint(1, 3000)):
            pipe.xadd(keys.groups, {"id": f"0:{i}", "batch": "0"} if i % 2 else {"any": os.urandom(9)})
        pipe.execute()


def short_redis(run: LiveRun, chance: random.Random) -> None:
    """Redis at its memory limit for a while."""
    client = connect(run.redis_url())
    client.config_set("maxmemory", 1)
    time.sleep(SHORT_S * chance.random())
    client.config_set("maxmemory", 0)


def full_disk(run: LiveRun, chance: random.Random) -> None:
    """The run continues, or ends with that reason. For root alone."""
    if not run.run.parent.is_mount():
        return
    filler = fill_up(run.run.parent)
    time.sleep(SHORT_S * chance.random())
    filler.unlink()
    # A learner that could not write a checkpoint ends steps later.
    wanted, deadline = run.trained() + 3, time.monotonic() + 900.0
    while run.alive() and run.trained() < wanted:
        assert time.monotonic() < deadline, run.output()
        run.processes()
        time.sleep(0.5)
    if not run.alive():
        run.fail()
        assert "is full" in " ".join(run.said().splitlines()[-5:])
        run.start("--resume")


def frozen(part: str) -> Callable[[LiveRun, random.Random], None]:
    def freeze(run: LiveRun, chance: random.Random) -> None:
        victim = run.kill(part, chance, signal.SIGSTOP)
        time.sleep(FROZEN_S * chance.random())
        with suppress(psutil.NoSuchProcess):
            victim.resume()

    return freeze


def frozen_for_good(run: LiveRun, chance: random.Random) -> None:
    """An engine: its replica is replaced."""
    victim = run.kill("engine", chance, signal.SIGSTOP)
    run.wait_for(lambda: not runs(victim), "end of the frozen engine")


def stopped(run: LiveRun, chance: random.Random) -> None:
    run.signal_group(chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
    run.fail(status=130)
    run.assert_nothing_left()
    run.start("--resume")


def launcher_killed(run: LiveRun, _: random.Random) -> None:
    run.kill_launcher()
    run.start("--resume")


def everything_killed(run: LiveRun, _: random.Random) -> None:
    run.kill_everything()
    run.start("--resume")


def raylet_killed(run: LiveRun, chance: random.Random) -> None:
    run.kill("raylet", chance)
    assert "raylet died" in run.fail()
    run.assert_nothing_left(120.0)
    run.start("--resume")


FAULTS: dict[str, Callable[[LiveRun, random.Random], None]] = {
    **{f"{part} killed": lambda run, chance, part=part: run.kill(part, chance) for part in KILLED},
    **{f"{part} frozen": frozen(part) for part in FROZEN},
    "engine frozen for good": frozen_for_good,
    "junk": junk,
    "Redis at its limit": short_redis,
    "full disk": full_disk,
    "stopped": stopped,
    "launcher killed": launcher_killed,
    "everything killed": everything_killed,
    "raylet killed": raylet_killed,
}


def drawn(chance: random.Random) -> Iterator[str]:
    """Names of faults without end."""
    while True:
        yield from chance.sample(list(FAULTS), len(FAULTS))


def settings(chance: random.Random) -> dict[str, object]:
    return {
        "weights.transport": chance.choice(["file", "gloo"]),
        "rollout.max_staleness": chance.choice([0, 1]),
        "generator.replicas": chance.choice([1, 1, 2]),
        "allocation.rounds": chance.choice([1, 2]),
        **OWN_REWARD,
    }


def test_runs_survive_everything_in_random_order(tmp_path: Path) -> None:
    chance, until, met = random.Random(SEED), time.monotonic() + 3600 * HOURS, Counter[str]()
    faults, number = drawn(chance), 0
    while time.monotonic() < until:
        number += 1
        with ExitStack() as ending:
            folder = tmp_path / f"disk{number}"
            with suppress(pytest.skip.Exception):  # not root: no disk of its own to fill
                ending.enter_context(small_disk(folder, DISK_MIB))
            log = tmp_path / f"run{number}.log"
            run = ending.enter_context(LiveRun(folder, STEPS, log=log, **settings(chance)))
            disturb(run, chance, faults, until, met)
            run.finish(1800.0)
            run.assert_exact()
            print(f"run {number}: exact", flush=True)
    print(f"seed {SEED}: {number} runs, {met.total()} faults in {HOURS:g} h: {dict(met)}")


def disturb(
    run: LiveRun, chance: random.Random, faults: Iterator[str], until: float, met: Counter[str]
) -> None:
    """One fault after the other, each after steps that show that the run came back from the last."""
    while run.progressed(chance.randint(1, APART)) and time.monotonic() < until:
        name = next(faults)
        print(f"{time.strftime('%X')} step {run.trained()}: {name}", flush=True)
        FAULTS[name](run, chance)
        met[name] += 1
