import asyncio
import io
import json
import time

import pytest
from rich.console import Console

from hora_rl.common.live.queue import Producer
from hora_rl.common.live.redis import connect_async
from hora_rl.common.live.state import changed
from hora_rl.common.live.telemetry import TELEMETRY, Heartbeat, heartbeat_now, record_step
from hora_rl.deploy.monitor.progress import Teller
from hora_rl.deploy.monitor.prometheus import gauges
from hora_rl.deploy.monitor.reading import read_run
from hora_rl.deploy.monitor.run_state import Kind, RunState, Warning
from hora_rl.deploy.monitor.screen import line, screen
from tests.support.synthetic_run import SyntheticRun, config_of, play


def exported(state) -> dict[str, float]:
    return {name: value for name, _, value in gauges(state)}


async def _depth(url, config) -> int:
    client = connect_async(url)
    try:
        return await Producer(client, config).depth()
    finally:
        await client.aclose()


def test_the_reading_agrees_with_the_queue_at_every_moment(redis_url):
    run = SyntheticRun(redis_url, config_of("agrees"))
    for batch in range(12):
        asyncio.run(run.generate(batch))
        for moment in ("pushed", "taken"):
            state = read_run(run.redis, "agrees")
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
    state = read_run(run.redis, "rates")
    assert state.rates["groups_in"] == pytest.approx(8 / (state.time - began), rel=0.05)
    assert state.rates["groups_out"] == 0.0


def text_of(state: RunState, kind: Kind) -> str:
    """The texts of the warnings of this kind, a line each."""
    return "\n".join(w.text for w in state.warnings if w.kind == kind)


@pytest.mark.system
def test_many_coordinators_keep_one_sample_a_second(redis_url):
    run = SyntheticRun(redis_url, config_of("samples"))
    began = time.time()
    while time.time() - began < 2.5:
        for _ in range(5):
            run.sample()
        time.sleep(0.02)
    assert 2 <= run.redis.xlen(run.keys.history) <= 4


def test_reading_a_run_writes_nothing(redis_url):
    run = SyntheticRun(redis_url, config_of("readers"))
    play(run, 2)
    before = {key: run.redis.dump(key) for key in run.redis.keys("hora:{readers}:*")}
    read_run(run.redis, "readers")
    assert {key: run.redis.dump(key) for key in run.redis.keys("hora:{readers}:*")} == before


def test_environments_are_missed_in_a_run_that_has_them(redis_url, monkeypatch):
    run = SyntheticRun(redis_url, config_of("rooms"))
    play(run, 3)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 20)
    assert "no environment" not in text_of(read_run(run.redis, "rooms"), Kind.NOT_ALIVE)
    monkeypatch.setattr(time, "time", lambda: now)
    heartbeat_now(run.redis, "rooms", "environment/a", {"running": 3})
    assert not read_run(run.redis, "rooms").warnings
    monkeypatch.setattr(time, "time", lambda: now + 20)
    assert "no environment is alive for 2" in text_of(read_run(run.redis, "rooms"), Kind.NOT_ALIVE)


def test_a_silent_replica_is_named_and_one_that_lags_too(redis_url, monkeypatch):
    run = SyntheticRun(redis_url, config_of("silent"))
    play(run, 3)
    assert not read_run(run.redis, "silent").warnings
    heartbeat_now(run.redis, "silent", "generator/old", {"version": 0, "running": 0})
    behind = Warning(Kind.REPLICA_BEHIND, "generator old holds version 0 of 3")
    assert behind in read_run(run.redis, "silent").warnings
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 20)
    assert "no generator is alive for 2" in text_of(read_run(run.redis, "silent"), Kind.NOT_ALIVE)
    monkeypatch.setattr(time, "time", lambda: now + 400)
    stalled = text_of(read_run(run.redis, "silent"), Kind.STALLED)
    assert "no optimizer step for 40" in stalled
    assert "weights of version" in stalled


def test_a_learner_that_takes_long_to_start_says_what_it_waits_for(redis_url):
    run = SyntheticRun(redis_url, config_of("starting"))
    play(run, 3)
    waits = {"state": "starting", "waiting_for": "process 7 of m, which compiles in /x"}
    heartbeat_now(run.redis, "starting", "learner/0", {**waits, "started": time.time() - 50})
    assert not read_run(run.redis, "starting").warnings
    heartbeat_now(run.redis, "starting", "learner/0", {**waits, "started": time.time() - 70})
    assert waits["waiting_for"] in text_of(read_run(run.redis, "starting"), Kind.STARTING)


@pytest.mark.parametrize(
    ("part", "said", "kind"),
    [
        ("verifier/v1", {"state": "serving", "away": "my:judge: it restarts"}, Kind.REWARD_AWAY),
        ("learner/0", {"notice": "step-00000006 is damaged: set aside"}, Kind.NOTICE),
    ],
)
def test_what_a_part_says_of_itself_is_shown_while_it_lives(redis_url, part, said, kind):
    run = SyntheticRun(redis_url, config_of(f"says-{kind}"))
    play(run, 3)
    heartbeat_now(run.redis, f"says-{kind}", part, said)
    assert list(said.values())[-1] in text_of(read_run(run.redis, f"says-{kind}"), kind)


def test_a_stall_counts_from_the_last_step_the_learner_s_start_or_the_end_of_a_pause(redis_url, monkeypatch):
    run = SyntheticRun(redis_url, config_of("idle"))
    began = time.time()

    def idle(after: float) -> float | None:
        monkeypatch.setattr(time, "time", lambda: began + after)
        heart = Heartbeat(run.redis, "idle", "learner/0")
        if after:
            heart.update(state="waiting")
            heart.stop()
        state = read_run(run.redis, "idle")
        monkeypatch.setattr(time, "time", lambda: began + after + 310)
        stalled = read_run(run.redis, "idle")
        assert stalled.warns(Kind.STALLED) == bool(after)
        return state.idle_s

    assert idle(0) is None, "no learner was seen: nothing is late"
    assert idle(1) == 0.0, "before the first step the learner's start counts"
    record_step(run.redis, "idle", {"step": 0})
    assert idle(5000) == 0.0, "a learner that has just been started again has had no time for a step"
    monkeypatch.setattr(time, "time", lambda: began + 6000)
    assert read_run(run.redis, "idle").idle_s == 1000.0
    run.redis.hset(run.keys.state, mapping={"paused": 0, "unpaused": began + 5990})
    assert read_run(run.redis, "idle").idle_s == 10.0


def test_drift_above_its_alarm_is_a_warning_with_the_figure_and_exported(redis_url):
    run = SyntheticRun(redis_url, config_of("drifts", weights={"drift_alarm": 0.2}))
    play(run, 2)
    for drift, alarm in ((0.19, False), (0.314, True), (None, False)):
        record_step(run.redis, "drifts", {"step": 1} | ({} if drift is None else {"drift": drift}))
        state = read_run(run.redis, "drifts")
        assert bool(state.warnings) == alarm
        assert state.warns(Kind.WEIGHTS_DISAGREE) == alarm
        assert all("differ by 0.314" in w.text and "drift_alarm (0.2)" in w.text for w in state.warnings)
        assert exported(state)["hora_weights_disagree"] == alarm


def test_living_replicas_of_one_version_whose_checksums_differ_are_named(redis_url, monkeypatch):
    run = SyntheticRun(redis_url, config_of("differ"))
    play(run, 3)

    def told(**replicas: tuple[int, str]) -> list[str]:
        for name, (version, checksum) in replicas.items():
            heartbeat_now(
                run.redis, "differ", f"generator/{name}", {"version": version, "checksum": checksum}
            )
        state = read_run(run.redis, "differ")
        assert exported(state)["hora_weights_disagree"] == state.warns(Kind.WEIGHTS_DISAGREE)
        return [w.text for w in state.warnings if w.kind == Kind.WEIGHTS_DISAGREE]

    assert told(a=(3, "x"), b=(3, "x"), c=(3, "x"), older=(2, "y"), adding_up=(3, "")) == []
    (late,) = told(late=(3, "z"))
    assert late == "weights disagree: of 4 generators on version 3, late hold what no majority holds"
    (both,) = told(late=(2, "z"))
    assert "of 2 generators on version 2, late, older hold" in both
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 20)
    assert told(a=(3, "x")) == [], "what the silent once held does not matter"


def test_a_coordinator_that_was_replaced_is_forgotten_and_one_without_successor_is_not(
    redis_url, monkeypatch
):
    run = SyntheticRun(redis_url, config_of("replaced"))
    play(run, 3)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 100)
    assert [p.name for p in read_run(run.redis, "replaced").of("coordinator")] == ["c0ffee"]
    heartbeat_now(run.redis, "replaced", "coordinator/new", {"state": "working"})
    assert [p.name for p in read_run(run.redis, "replaced").of("coordinator")] == ["new"]
    assert [p.name for p in read_run(run.redis, "replaced").of("learner")] == ["rank-0"]


def test_a_finished_run_has_no_warnings_though_everything_is_silent(redis_url, monkeypatch):
    run = SyntheticRun(redis_url, config_of("done", learner={"steps": 2}))
    play(run, 2)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 4000)
    state = read_run(run.redis, "done")
    assert (state.status, state.warnings) == ("finished", ())


def test_a_part_of_another_version_is_named_and_the_rest_still_shown(redis_url):
    run = SyntheticRun(redis_url, config_of("mixed"))
    play(run, 2)
    for version, word in ((None, "an older"), (TELEMETRY + 1, "a newer")):
        said = {"version": 2, "running": 3, "seen": time.time()} | ({"telemetry": version} if version else {})
        run.redis.hset(run.keys.parts, "generator/other", json.dumps(said))
        state = read_run(run.redis, "mixed")
        assert f"generator of {word} hora (telemetry" in text_of(state, Kind.OTHER_VERSION)
        assert len(state.of("generator")) == 3


def waited(run, share: float, idle: float, seconds: float = 10.0) -> None:
    """Two more steps of `run`, in which the learner waited and the generators idled for these shares."""
    for step in (1, 2):
        figures = {"step": step, "time/step": seconds, "time/wait": share * seconds, "generators/idle": idle}
        record_step(run.redis, run.config.run.name, figures)


def test_the_side_that_idles_is_on_every_view_with_the_split_that_would_balance_it(redis_url):
    config = config_of("split", generator={"replicas": 2}, learner={"workers": 6, "steps": 40})
    run = SyntheticRun(redis_url, config)
    run.redis.hset(run.keys.state, mapping=changed(device="NVIDIA H100"))
    run.beat(2, learner="training")
    waited(run, 0.5, 0.0)
    state = read_run(run.redis, "split")
    text = text_of(state, Kind.LEARNER_STARVING)
    assert "generator.replicas 3 and learner.workers 5" in text
    assert state.to_dict()["balance"]["split"]["values"] == (3, 5)
    assert "waits 50% of its time" in line(state)
    assert_shown(state, text)
    assert exported(state)["hora_learner_starving"] == 1

    heartbeat_now(run.redis, "split", "generator/third", {"version": 2, "running": 1})
    assert "would balance" not in text_of(read_run(run.redis, "split"), Kind.LEARNER_STARVING)
    waited(run, 0.0, 0.7)
    assert read_run(run.redis, "split").warns(Kind.GENERATORS_IDLE)
    run.redis.hset(run.keys.state, mapping=changed(paused=True))
    assert not read_run(run.redis, "split").warns(Kind.GENERATORS_IDLE)


def test_where_both_sides_wait_the_bottleneck_is_named(redis_url):
    run = SyntheticRun(redis_url, config_of("starving"))
    waited(run, 0.5, 0.5)

    def told(running: int, answers: int = 0) -> str:
        run.beat(2, running=running, learner="waiting", answers=answers)
        return text_of(read_run(run.redis, "starving"), Kind.LEARNER_STARVING).partition("a step): ")[2]

    verifiers = "verifiers are the bottleneck ({} answers wait)"
    assert told(running=0, answers=7) == verifiers.format(7)
    assert told(running=5, answers=60) == "generators are the bottleneck"
    assert told(running=5, answers=90) == verifiers.format(90), "over two seconds' work at 40/s"
    assert told(running=0).startswith(
        "neither generators nor verifiers report work; the coordinator waits for weights of version 3"
    )


def test_the_learner_starves_for_one_group_though_newer_ones_fill_the_queue(redis_url, monkeypatch):
    run = SyntheticRun(redis_url, config_of("straggler"))
    play(run, 2)
    asyncio.run(run.generate(2))
    now = time.time()
    for later, warns in ((5, False), (15, True)):
        monkeypatch.setattr(time, "time", lambda at=now + later: at)
        run.beat(2, learner="waiting", missing=1, batch=1)
        state = read_run(run.redis, "straggler")
        assert [w.kind for w in state.warnings] == [Kind.LEARNER_STARVING] * warns
    assert state.queue_depth >= state.prompts_per_batch
    assert "step 2 lacks 1 of 8 groups, the oldest of batch 1" in state.warnings[0].text
    monkeypatch.setattr(time, "time", lambda: now + 35)
    assert not read_run(run.redis, "straggler").warns(Kind.LEARNER_STARVING), "it is dead"
    run.beat(2, learner="training")
    assert read_run(run.redis, "straggler").warnings == ()


IDLE = (Kind.GATE_SHUT, Kind.NO_HIT, Kind.NO_SIGNAL, Kind.CUT)


@pytest.mark.parametrize(
    ("metrics", "kind", "words"),
    [
        ({"groups/hit": 0.0}, Kind.NO_HIT, "step 4"),
        ({"groups/zero_signal": 0.75, "success": 0.1}, Kind.NO_SIGNAL, "easier problems"),
        ({"groups/zero_signal": 0.75, "success": 0.9}, Kind.NO_SIGNAL, "harder problems"),
        ({"length/cut": 0.6}, Kind.CUT, "rollout.max_response_tokens (2048)"),
    ],
)
def test_what_leaves_nothing_to_allocate_or_to_learn_is_said_with_its_remedy(redis_url, metrics, kind, words):
    name = f"idle-{words[:4]}"
    run = SyntheticRun(redis_url, config_of(name))
    play(run, 4)
    assert not {w.kind for w in read_run(run.redis, name).warnings} & set(IDLE)
    usual = {"step": 4, "groups/hit": 0.5, "groups/zero_signal": 0.5, "length/cut": 0.5, "success": 0.4}
    record_step(run.redis, name, usual)
    assert not read_run(run.redis, name).warnings
    record_step(run.redis, name, usual | metrics)
    state = read_run(run.redis, name)
    (warning,) = state.warnings
    assert (warning.kind, words in warning.text) == (kind, True)
    told = {tags["kind"]: value for name, tags, value in gauges(state) if name == "hora_warning"}
    assert [k for k, value in told.items() if value] == [kind]
    assert {"kind": kind, "text": warning.text} in state.to_dict()["warnings"]
    assert_shown(state, warning.text)


def test_a_gate_that_stays_shut_says_what_it_sees_and_what_it_needs(redis_url):
    run = SyntheticRun(redis_url, config_of("shut"))
    play(run, 2)
    for seen, shut in ((8, False), (9, True)):
        run.redis.hset(run.keys.state, mapping=changed(gate_open=False, gate_seen=seen, gate_mean=0.314))
        state = read_run(run.redis, "shut")
        assert state.warns(Kind.GATE_SHUT) == shut
    assert "format reward is 0.31, and 3 batches in a row need 0.85" in text_of(state, Kind.GATE_SHUT)
    run.redis.hset(run.keys.state, mapping=changed(gate_open=True))
    assert not read_run(run.redis, "shut").warnings
    plain = SyntheticRun(redis_url, config_of("no-gate", reward={"weights": {"accuracy": 1.0}}))
    play(plain, 2)
    plain.redis.hset(plain.keys.state, mapping=changed(gate_seen=99, gate_mean=0.0))
    assert not read_run(plain.redis, "no-gate").warnings


def assert_shown(state: RunState, text: str) -> None:
    """On the screen, and once on the console of `hora run`."""
    shown, told = (Console(width=400, record=True, file=io.StringIO()) for _ in range(2))
    shown.print(screen(state, 400))
    tell = Teller(told)
    for _ in range(3):
        tell(state)
    assert f"! {text}" in shown.export_text()
    assert told.export_text().count(f"! {text}") == 1
