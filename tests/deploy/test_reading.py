"""One reading of a run: queue, rates, parts and warnings, on a real Redis. Which side idles, and which split
would balance it: from figures of steps alone."""

import asyncio
import io
import itertools
import json
import time

import pytest
from rich.console import Console

from hora_rl.actors.generator.deployment import stage_shown
from hora_rl.common.config import Config
from hora_rl.common.live.queue import Producer
from hora_rl.common.live.redis import connect_async
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import TELEMETRY, Heartbeat, record_step
from hora_rl.deploy.monitor.prometheus import gauges
from hora_rl.deploy.monitor.run_state import (
    WINDOW,
    Balance,
    Kind,
    Metrics,
    RunState,
    Warning,
    balance,
    split_of,
)
from hora_rl.deploy.monitor.screen import line, screen
from hora_rl.deploy.monitor.terminal import Teller
from tests.support.synthetic_run import SyntheticRun, config_of, play


def exported(state) -> dict[str, float]:
    return {name: value for name, _, value in gauges(state)}


def text_of(state: RunState, kind: Kind) -> str:
    """The texts of the warnings of this kind, a line each."""
    return "\n".join(w.text for w in state.warnings if w.kind == kind)


async def _depth(url, config) -> int:
    client = connect_async(url)
    try:
        return await Producer(client, config.run.name, config.rollout.prompts_per_batch).depth()
    finally:
        await client.aclose()


def test_the_reading_agrees_with_the_queue_at_every_moment(redis_url):
    run = SyntheticRun(redis_url, config_of("agrees"))
    for batch in range(12):
        asyncio.run(run.generate(batch))
        for moment in ("pushed", "taken"):
            state = run.read()
            assert state.queue_depth == asyncio.run(_depth(redis_url, run.config)), (batch, moment)
            if moment == "pushed":
                run.train(batch)
    assert state.totals["rollouts_in"] == 12 * 8 * 16
    assert state.totals["groups_out"] == 12 * 8
    assert sum(state.phase_a.values()) == 12 * 8
    assert sum(state.phase_b.values()) == 12 * 8 * (16 - 8)
    assert state.learner["step"] == 11


def test_rates_are_per_second_over_what_was_sampled(redis_url):
    run = SyntheticRun(redis_url, config_of("rates"))
    began = time.time()
    run.sample()
    asyncio.run(run.generate(0))
    time.sleep(1.2)
    state = run.read()
    assert state.rates["groups_in"] == pytest.approx(8 / (state.time - began), rel=0.05)
    assert state.rates["groups_out"] == 0.0


@pytest.mark.system
def test_many_coordinators_keep_one_sample_a_second(redis_url):
    run = SyntheticRun(redis_url, config_of("samples"))
    began = time.time()
    while time.time() - began < 2.5:
        for _ in range(5):
            run.sample()
        time.sleep(0.02)
    assert 2 <= run.redis.xlen(run.keys.history) <= 4


def test_reading_a_run_writes_nothing(run):
    def kept() -> dict[bytes, bytes]:
        return {key: run.redis.dump(key) for key in run.redis.keys(f"hora:{{{run.name}}}:*")}

    before = kept()
    run.read()
    assert kept() == before


def test_the_stage_of_a_loading_engine_is_in_the_snapshot(run, redis_url):
    with stage_shown(redis_url, run.name, "abc"):
        began = time.monotonic()
        while not (engines := run.read().of("engine")) and time.monotonic() < began + 30.0:
            time.sleep(0.1)
        [engine] = engines
        assert (engine.name, engine.state["state"], engine.alive) == ("abc", "importing vLLM", True)
        assert not text_of(run.read(), Kind.REPLICA_BEHIND)
    assert not run.read().of("engine")


def test_silent_parts_and_a_stall_are_named_after_their_time(run):
    assert not run.read().warnings
    run.says("generator/old", version=0, running=0)
    assert Warning(Kind.REPLICA_BEHIND, "generator old holds version 0 of 5") in run.read().warnings
    missing = text_of(run.read(20), Kind.NOT_ALIVE)
    assert "no generator is alive for 2" in missing
    assert "no environment" not in missing, "this run has none"
    stalled = text_of(run.read(400), Kind.STALLED)
    assert "no optimizer step for 40" in stalled
    assert "weights of version" in stalled
    run.says("environment/a", running=3)
    assert "no environment is alive for 2" in text_of(run.read(20), Kind.NOT_ALIVE)


def test_what_a_part_says_of_itself_is_shown_and_what_a_learner_waits_for_that_takes_long_to_start(run):
    run.says("verifier/v1", away="a service is")
    run.says("learner/0", notice="step-00000006 is damaged")
    assert "a service is" in text_of(run.read(), Kind.REWARD_AWAY)
    assert "step-00000006 is damaged" in text_of(run.read(), Kind.NOTICE)
    waits = "process 7 of m, which compiles in /x"
    for seconds, told in ((50, ""), (70, waits)):
        run.says("learner/0", state="starting", waiting_for=waits, started=time.time() - seconds)
        assert text_of(run.read(), Kind.STARTING)[-len(waits) :] == told


def test_a_stall_counts_from_the_last_step_the_learner_s_start_or_the_end_of_a_pause(redis_url, monkeypatch):
    run = SyntheticRun(redis_url, config_of("idle"))
    began = time.time()

    def idle(after: float) -> float | None:
        monkeypatch.setattr(time, "time", lambda: began + after)
        heart = Heartbeat(run.redis, "idle", "learner/0")
        if after:
            heart.update(state="waiting")
            heart.stop()
        assert run.read(310).warns(Kind.STALLED) == bool(after)
        return run.read().idle_s

    assert idle(0) is None, "no learner was seen: nothing is late"
    assert idle(1) == 0.0, "before the first step the learner's start counts"
    record_step(run.redis, "idle", {"step": 0})
    assert idle(5000) == 0.0, "a learner that has just been started again has had no time for a step"
    monkeypatch.setattr(time, "time", lambda: began + 6000)
    assert run.read().idle_s == 1000.0
    run.redis.hset(run.keys.state, mapping={"paused": 0, "unpaused": began + 5990})
    assert run.read().idle_s == 10.0


def test_drift_above_its_alarm_is_a_warning_with_the_figure_and_exported(redis_url):
    run = SyntheticRun(redis_url, config_of("drifts", weights={"drift_alarm": 0.2}))
    play(run, 2)
    for drift, alarm in ((0.19, False), (0.314, True), (None, False)):
        record_step(run.redis, "drifts", {"step": 1} | ({} if drift is None else {"drift": drift}))
        state = run.read()
        assert bool(state.warnings) == alarm
        assert state.warns(Kind.WEIGHTS_DISAGREE) == alarm
        assert all("differ by 0.314" in w.text and "drift_alarm (0.2)" in w.text for w in state.warnings)
        assert exported(state)["hora_weights_disagree"] == alarm


def test_living_replicas_of_one_version_whose_checksums_differ_are_named(run, monkeypatch):
    def told(**replicas: tuple[int, str]) -> str:
        for name, (version, checksum) in replicas.items():
            run.says(f"generator/{name}", version=version, checksum=checksum)
        return text_of(run.read(), Kind.WEIGHTS_DISAGREE)

    assert told(a=(3, "x"), b=(3, "x"), c=(3, "x"), older=(2, "y"), adding_up=(3, "")) == ""
    late = told(late=(3, "z"))
    assert "of 4 generators on version 3, late " in late
    assert "of 2 generators on version 2, late, older " in told(late=(2, "z"))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 20)
    assert told(a=(3, "x")) == "", "what the silent once held does not matter"


def test_a_coordinator_that_was_replaced_is_forgotten_and_one_without_successor_is_not(run, monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 100)
    assert [p.name for p in run.read().of("coordinator")] == ["c0ffee"]
    run.says("coordinator/new", state="working")
    assert [p.name for p in run.read().of("coordinator")] == ["new"]
    assert [p.name for p in run.read().of("learner")] == ["rank-0"]


def test_a_part_of_another_version_is_named_and_the_rest_still_shown(run):
    for version, word in ((None, "an older"), (TELEMETRY + 1, "a newer")):
        said = {"version": 2, "running": 3, "seen": time.time()} | ({"telemetry": version} if version else {})
        run.redis.hset(run.keys.parts, "generator/other", json.dumps(said))
        state = run.read()
        assert f"generator of {word} hora (telemetry" in text_of(state, Kind.OTHER_VERSION)
        assert len(state.of("generator")) == 3


def waited(run: SyntheticRun, share: float, idle: float) -> None:
    """Two more steps of ten seconds, in which the learner waited and the generators idled for these
    shares."""
    for step in (1, 2):
        figures = {"step": step, "time/step": 10.0, "time/wait": 10.0 * share, "generators/idle": idle}
        record_step(run.redis, run.name, figures)


def test_the_side_that_idles_is_on_every_view_with_the_split_that_would_balance_it(redis_url):
    config = config_of("split", generator={"replicas": 2}, learner={"workers": 6, "steps": 40})
    run = SyntheticRun(redis_url, config)
    run.redis.hset(run.keys.state, mapping=changed(device="NVIDIA H100"))
    run.beat(2, learner="training")
    waited(run, 0.5, 0.0)
    state = run.read()
    text = text_of(state, Kind.LEARNER_STARVING)
    assert "generator.replicas 3 and learner.workers 5" in text
    assert state.to_dict()["balance"]["split"]["values"] == (3, 5)
    assert "waits 50% of its time" in line(state)
    assert_shown(state, text)
    assert exported(state)["hora_learner_starving"] == 1

    run.says("generator/third", version=2, running=1)
    assert "would balance" not in text_of(run.read(), Kind.LEARNER_STARVING)
    waited(run, 0.0, 0.7)
    assert run.read().warns(Kind.GENERATORS_IDLE)
    run.redis.hset(run.keys.state, mapping=changed(paused=True))
    assert not run.read().warns(Kind.GENERATORS_IDLE)


def test_where_both_sides_wait_the_bottleneck_is_named(redis_url):
    run = SyntheticRun(redis_url, config_of("starving"))
    waited(run, 0.5, 0.5)

    def told(running: int, answers: int = 0) -> str:
        run.beat(2, running=running, learner="waiting", answers=answers)
        return text_of(run.read(), Kind.LEARNER_STARVING).partition("a step): ")[2]

    verifiers = "verifiers are the bottleneck ({} answers wait)"
    assert told(running=0, answers=7) == verifiers.format(7)
    assert told(running=5, answers=60) == "generators are the bottleneck"
    assert told(running=5, answers=90) == verifiers.format(90), "over two seconds' work at 40/s"
    waits = "the coordinator waits for weights of version 3"
    assert told(running=0).startswith(f"neither generators nor verifiers report work; {waits}")


def test_the_learner_starves_for_one_group_though_newer_ones_fill_the_queue(run, monkeypatch):
    asyncio.run(run.generate(5))
    now = time.time()
    for later, warns in ((5, False), (15, True)):
        monkeypatch.setattr(time, "time", lambda at=now + later: at)
        run.beat(5, learner="waiting", missing=1, batch=4)
        state = run.read()
        assert [w.kind for w in state.warnings] == [Kind.LEARNER_STARVING] * warns
    assert state.queue_depth >= state.prompts_per_batch
    assert "step 5 lacks 1 of 8 groups, the oldest of batch 4" in state.warnings[0].text
    assert not run.read(20).warns(Kind.LEARNER_STARVING), "it is dead"
    run.beat(5, learner="training")
    assert run.read().warnings == ()


USUAL = {"step": 4, "groups/hit": 0.5, "groups/zero_signal": 0.5, "length/cut": 0.5, "success": 0.4}
FELL = [{"step": step, "entropy/trained": entropy} for step, entropy in enumerate((1.12, 0.55, 0.5))]


@pytest.mark.parametrize(
    ("records", "kind", "words"),
    [
        ([{"groups/hit": 0.0}], Kind.NO_HIT, "step 4"),
        ([{"groups/zero_signal": 0.75, "success": 0.1}], Kind.NO_SIGNAL, "easier problems"),
        ([{"groups/zero_signal": 0.75, "success": 0.9}], Kind.NO_SIGNAL, "harder problems"),
        ([{"length/cut": 0.6}], Kind.CUT, "rollout.max_response_tokens (2048)"),
        (FELL, Kind.MOVED, "step 1: "),
    ],
)
def test_what_leaves_nothing_to_learn_or_moves_far_is_on_every_view(run, records, kind, words):
    record_step(run.redis, run.name, USUAL)
    assert not run.read().warnings
    for metrics in records:
        record_step(run.redis, run.name, USUAL | metrics)
    state = run.read()
    (warning,) = state.warnings
    assert (warning.kind, words in warning.text) == (kind, True)
    shown = {tags["kind"]: value for name, tags, value in gauges(state) if name == "hora_warning"}
    assert [k for k, value in shown.items() if value] == [kind]
    assert {"kind": kind, "text": warning.text} in state.to_dict()["warnings"]
    assert_shown(state, warning.text)


def test_a_gate_that_stays_shut_says_what_it_sees_and_what_it_needs(run, redis_url):
    for seen, shut in ((8, False), (9, True)):
        run.redis.hset(run.keys.state, mapping=changed(gate_open=False, gate_seen=seen, gate_mean=0.314))
        assert run.read().warns(Kind.GATE_SHUT) == shut
    assert "0.31" in text_of(run.read(), Kind.GATE_SHUT)
    run.redis.hset(run.keys.state, mapping=changed(gate_open=True))
    assert not run.read().warnings
    plain = SyntheticRun(redis_url, config_of("no-gate", reward={"weights": {"accuracy": 1.0}}))
    plain.redis.hset(plain.keys.state, mapping=changed(gate_seen=99, gate_mean=0.0))
    assert not plain.read().warns(Kind.GATE_SHUT)


def test_the_prompts_that_rest_are_on_every_view(run, redis_url):
    resting = SyntheticRun(redis_url, config_of("resting", data={"rest": ["solved"]}))
    resting.redis.hset(resting.keys.state, mapping=changed(resting=12))
    state = resting.read()
    assert state.to_dict()["resting"] == 12
    assert ("hora_resting_prompts", {}, 12) in list(gauges(state))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(screen(state, 200))
    assert "12 prompts rest" in console.export_text()
    assert run.read().resting is None
    assert ("hora_resting_prompts", {}, 0) in list(gauges(run.read()))


def assert_shown(state: RunState, text: str) -> None:
    """On the screen, and once on the console of `hora run`."""
    shown, told = (Console(width=400, record=True, file=io.StringIO()) for _ in range(2))
    shown.print(screen(state, 400))
    tell = Teller(told)
    for _ in range(3):
        tell(state)
    assert f"! {text}" in shown.export_text()
    assert told.export_text().count(f"! {text}") == 1


H100 = "NVIDIA H100 80GB HBM3"


def cards(replicas: int, workers: int, tensor_parallel: int = 1) -> Config:
    generator = {"replicas": replicas, "tensor_parallel": tensor_parallel}
    return config_of("split", generator=generator, learner={"workers": workers})


def steps(*shares: tuple[float, float | None], seconds: float = 100.0, first: int = 1) -> list[Metrics]:
    """Records of steps in which the learner waited and the generators idled for these shares."""
    return [
        {"step": first + i, "time/step": seconds, "time/wait": wait * seconds, "generators/idle": idle}
        for i, (wait, idle) in enumerate(shares)
    ]


def balance_of(config: Config, wait: float, idle: float | None, device: str = H100) -> Balance:
    learner, split = config.learner, split_of(config.generator, config.learner, device)
    result = balance(steps((wait, idle), (wait, idle)), learner.steps, config.rollout.max_staleness, split)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("now", "wait", "idle", "side", "values", "factor"),
    [
        ((2, 6), 0.5, 0.0, "learner", (3, 5), 0.667),
        ((1, 7), 0.7, 0.0, "learner", (3, 5), 0.42),
        ((48, 16), 0.0, 0.75, "generators", (27, 37), 0.444),
        ((4, 4), 0.05, 0.7, "generators", (2, 6), 0.667),
        ((1, 1), 0.6, 0.0, "learner", None, 1.0),  # nothing can be moved
        ((2, 2), 0.3, 0.0, "learner", None, 1.0),  # 3 + 1 would be slower
        ((4, 4), 0.4, 0.5, "generators", None, 1.0),  # both wait for something else
        ((1, 6, 2), 0.5, 0.0, "learner", (2, 4), 0.75),  # a replica takes its two cards at once
    ],
)
def test_cards_move_to_the_side_that_is_slow(
    now: tuple[int, ...], wait: float, idle: float, side: str, values: tuple[int, int] | None, factor: float
) -> None:
    result = balance_of(cards(*now), wait, idle)
    assert (result.side, result.split and result.split.values) == (side, values)
    assert result.factor == pytest.approx(factor, abs=0.06)
    assert bool(result.remedy) == (values is not None)
    if values:
        assert f"generator.replicas {values[0]} and learner.workers {values[1]} would" in result.remedy


def test_on_processors_threads_move() -> None:
    threads = {"generator": {"threads": 2}, "learner": {"threads": 6}}
    result = balance_of(config_of("cpu", **threads), 0.5, 0.0, "cpu")
    assert "generator.threads 3 and learner.threads 5 would balance them, with steps of" in result.remedy
    assert not balance_of(config_of("cpu"), 0.5, 0.0, "cpu").remedy, "of two threads each side has one"


def test_on_a_shared_card_or_an_unknown_device_it_is_said_who_waits_and_no_more() -> None:
    shared = config_of("result", generator={"gpus": 0.5}, learner={"gpus": 0.5})
    for config, device in ((shared, H100), (cards(2, 6), "")):
        result = balance_of(config, 0.5, 0.0, device)
        assert (result.says, result.remedy) == ("learner waits 50% of its time (50.0 of 100.0 s a step)", "")
    assert balance_of(cards(2, 6), 0.5, None).remedy == "", "how busy the generators are is not known"


def test_nothing_is_said_before_two_steps_of_the_end_of_a_run_and_of_sides_that_take_turns() -> None:
    config, idle = cards(2, 6), (0.0, 0.9)
    split, end = split_of(config.generator, config.learner, H100), config.learner.steps
    assert balance(steps(idle, idle, first=0), end, 1, split) is None
    assert balance(steps(idle, idle), end, 1, split) is not None
    assert balance(steps(idle, idle, seconds=4.0), end, 1, split) is None, "in 8 s there were 8 looks"
    assert balance(steps(*[(0.0, 0.0)] * 8, idle, idle, first=end - 10), end, 1, split) is None
    assert balance(steps((0.5, 0.5), (0.5, 0.5)), end, 0, split) is None, "they wait by design"


def test_what_is_said_does_not_flap() -> None:
    """Shares around the limit, and single steps that wait for an operator or an evaluation."""
    end = cards(2, 6).learner.steps

    def shown(records: list[Metrics]) -> list[bool]:
        return [balance(records[:n], end, 1, None) is not None for n in range(2, len(records) + 1)]

    around = shown(steps(*[(0.27 if i % 2 else 0.22, 0.0) for i in range(2 * WINDOW)]))
    assert sum(a != b for a, b in itertools.pairwise(around)) <= 1
    assert not any(shown(steps(*[(0.95 if i == 7 else 0.05, 0.0) for i in range(WINDOW)])))
    healed = shown(steps(*[(0.5, 0.0)] * 4, *[(0.0, 0.0)] * WINDOW))
    assert (healed[0], healed[-1]) == (True, False)
    assert sum(a != b for a, b in itertools.pairwise(healed)) == 1
