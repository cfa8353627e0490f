"""Examples for verl and prime-rl: their allocation always, the trainer's interface where it is installed."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import uuid
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from examples.prime_rl_hora import Division, classes, install, succeeded
from hora_rl.allocator import Session

RATES = np.array([0.0, 0.1, 0.5, 1.0])
G, G0, ROUNDS = 16, 4, 3
SETTINGS = {"rule": "first_hit", "rounds": ROUNDS, "stop": "hit"}


def expected(outcomes: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Group sizes and rounds of a session told in whole rounds; rows of `outcomes` are used from the left."""
    n = len(outcomes)
    session = Session(n, n * (G - G0), "first_hit", rounds=ROUNDS, stop="hit")
    asked, used, rounds = np.full(n, G0), np.zeros(n, dtype=np.int64), []
    while not session.done:
        hits = [row[u : u + k].sum() for row, u, k in zip(outcomes, used, asked, strict=True)]
        used += asked
        session.tell(hits, asked)
        asked = session.ask()
        rounds.append(asked)
    return used, rounds


@pytest.fixture
def outcomes() -> np.ndarray:
    return np.random.default_rng(5).random((len(RATES), len(RATES) * G)) < RATES[:, None]


def test_prime_rls_groups_form_shards_by_environment_and_end_when_the_budget_is_spent(
    outcomes: np.ndarray,
) -> None:
    division = Division(len(RATES), G, G0, **SETTINGS)
    names = [f"{env}{i}" for i in range(len(RATES)) for env in ("a", "b")]
    waiting = [name for name in names for _ in range(G0)]
    used, ended = dict.fromkeys(names, 0), list[str]()
    while waiting:
        name = waiting.pop(0)
        hit = bool(outcomes[int(name[1]), used[name]])
        used[name] += 1
        granted, whole = division.arrived(name[0], name, hit)
        ended += whole
        waiting += [other for other, n in granted.items() for _ in range(n)]
    sizes, _ = expected(outcomes)
    for env in "ab":
        assert [used[f"{env}{i}"] for i in range(len(RATES))] == sizes.tolist()
    assert sorted(ended) == sorted(names)


class Groups:
    """What the example needs of a dispatcher: open groups, each with the episodes that it still asks for."""

    def __init__(self) -> None:
        self.groups: dict[uuid.UUID, Any] = {}

    def next_fresh_group(self, kind: str, envs: Any) -> Any:
        return SimpleNamespace(episodes_to_schedule=G, target_episodes=G)


class Ended:
    """What the example needs of a sink: it is told of every group once, with the episodes that arrived."""

    def __init__(self) -> None:
        self.pending_groups: dict[str, list[Any]] = defaultdict(list)
        self.pending_group_cancellations: dict[str, Any] = {}
        self.ended: dict[str, int] = {}

    async def process_episode(self, episode: Any) -> None:
        assert episode.traces

    async def process_group(self, group: str) -> None:
        episodes = self.pending_groups.pop(group, [])
        cancelled = self.pending_group_cancellations.pop(group, None)
        if episodes or cancelled:
            assert group not in self.ended
            self.ended[group] = len(episodes)

    def _maybe_batch(self) -> None:
        return None


@pytest.mark.parametrize("dropped", [None, 1])
def test_prime_rls_groups_grow_by_what_is_granted_and_a_dropped_one_ends_alone(
    outcomes: np.ndarray, dropped: int | None
) -> None:
    n = len(RATES)
    dispatcher_class, sink_class = classes(
        Groups, Ended, Division(n, G, G0, **SETTINGS), lambda e: ("env", e.group)
    )
    dispatcher, sink = dispatcher_class(), sink_class()
    assert dispatcher.next_fresh_group("eval", None).episodes_to_schedule == G
    names = [uuid.UUID(int=i) for i in range(n)]
    for name in names:
        dispatcher.groups[name] = dispatcher.next_fresh_group("train", None)
    used = dict.fromkeys(names, 0)

    async def drive() -> None:
        while waiting := [name for name, g in dispatcher.groups.items() if g.episodes_to_schedule]:
            for name in waiting:
                group = dispatcher.groups[name]
                if name.int == dropped and used[name] == 2:  # as `drop_group`: all that it still owes
                    del dispatcher.groups[name]
                    owed = SimpleNamespace(
                        group_id=str(name), env_name="env", count=group.episodes_to_schedule
                    )
                    await sink.cancel(owed)
                    continue
                group.episodes_to_schedule -= 1
                hit = float(outcomes[name.int, used[name]])
                used[name] += 1
                trace = SimpleNamespace(reward=hit, has_error=False, agent=SimpleNamespace(trainable=True))
                await sink.add(SimpleNamespace(group=str(name), traces=[trace]))

    asyncio.run(drive())
    assert sink.ended == {str(name): used[name] for name in names}
    assert not dispatcher.groups
    if dropped is None:
        assert list(used.values()) == expected(outcomes)[0].tolist()
    else:
        assert used[names[dropped]] == 2
        assert sum(used.values()) <= n * G - (G0 - 2)


def test_verls_worker_spends_the_budget_through_verls_own_dispatch(
    outcomes: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_loop_tq = _module("verl.trainer.ppo.v1.agent_loop_tq")
    verl_hora = importlib.import_module("examples.verl_hora")
    base = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    for method in ("_run_prompt", "generate_sequences", "_agent_loop_postprocess"):
        theirs, ours = (inspect.signature(getattr(c, method)) for c in (base, verl_hora.HoraWorker))
        # Ray adds `_ray_trace_ctx` to what it turns into an actor.
        assert [p for p in theirs.parameters if p != "_ray_trace_ctx"] == list(ours.parameters), method
    assert "self.agent_loop_workers_class" in inspect.getsource(agent_loop_tq.AgentLoopManager)
    assert base in verl_hora.HoraWorker.__mro__
    sizes, _ = expected(outcomes)
    statuses, sessions = _run_worker(verl_hora, base, agent_loop_tq, outcomes, monkeypatch)
    assert {uid: s[-1] for uid, s in statuses.items()} == {f"u{i}": "finished" for i in range(len(RATES))}
    assert [len(sessions[f"u{i}"]) for i in range(len(RATES))] == sizes.tolist()
    assert all(sorted(s) == list(range(len(s))) for s in sessions.values())


def _run_worker(
    verl_hora: Any, base: Any, agent_loop_tq: Any, outcomes: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, list[str]], dict[str, list[int]]]:
    """A batch through `generate_sequences` of a worker whose models and queue are those of the test."""
    from omegaconf import OmegaConf
    from verl.utils import tensordict_utils

    statuses: dict[str, list[str]] = {}
    sessions: dict[str, list[int]] = {}

    async def put(key: str, partition_id: str, tag: dict[str, str]) -> None:
        assert partition_id == "train"
        statuses.setdefault(key, []).append(tag["status"])

    async def loop(self: Any, sampling_params: Any, trajectory: Any, *, trace: bool, **prompt: Any) -> float:
        await asyncio.sleep(0)
        mine = sessions.setdefault(prompt["uid"], [])
        mine.append(prompt["session_id"])
        return float(outcomes[int(prompt["uid"][1:]), prompt["session_id"]])

    rollout = {
        "n": G,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "calculate_log_probs": True,
        "agent": {"default_agent_loop": "single_turn_agent"},
    }
    rollout_of = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": {}}})
    workers = verl_hora.HoraManager(rollout_of, None).agent_loop_workers_class
    assert issubclass(workers.__ray_metadata__.modified_class, verl_hora.HoraWorker)
    worker = object.__new__(verl_hora.HoraWorker)
    worker.config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": rollout}, "hora": {"pre_rollouts": G0, **SETTINGS}}
    )
    worker.background_tasks, worker.places = set(), {}
    for module in (agent_loop_tq, verl_hora):
        monkeypatch.setattr(module.tq, "async_kv_put", put)
    monkeypatch.setattr(base, "_run_agent_loop", loop)
    n = len(RATES)
    uids = np.array([f"u{i}" for i in range(n)], dtype=object)
    batch = tensordict_utils.get_tensordict({"uid": uids, "index": np.arange(n).astype(object)})
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", 1)

    async def drive() -> None:
        await worker.generate_sequences(batch)
        await asyncio.wait_for(asyncio.gather(*worker.background_tasks), 30)

    asyncio.run(drive())
    return statuses, sessions


def test_prime_rls_dispatcher_and_sink_have_what_the_example_replaces() -> None:
    orchestrator = _module("prime_rl.orchestrator.orchestrator")
    dispatcher, sink = orchestrator.Dispatcher, orchestrator.TrainSink
    from prime_rl.orchestrator.types import GroupState

    assert {"episodes_to_schedule", "target_episodes", "emitted"} <= set(GroupState.__dataclass_fields__)
    for method in ("process_episode", "process_group", "_maybe_batch", "add", "cancel"):
        assert callable(getattr(sink, method))
    try:
        install(prompts=2, group_size=4, pre_rollouts=2)
        for ours, theirs in ((orchestrator.Dispatcher, dispatcher), (orchestrator.TrainSink, sink)):
            assert issubclass(ours, theirs)
            for name in {"next_fresh_group", "add", "cancel"} & vars(ours).keys():
                pair = (inspect.signature(getattr(c, name)) for c in (ours, theirs))
                assert len({tuple(s.parameters) for s in pair}) == 1, name
    finally:
        orchestrator.Dispatcher, orchestrator.TrainSink = dispatcher, sink


def test_success_of_an_episode_is_that_of_a_trainable_trace() -> None:
    def trace(reward: float, trainable: bool = True, has_error: bool = False) -> Any:
        return SimpleNamespace(reward=reward, has_error=has_error, agent=SimpleNamespace(trainable=trainable))

    assert succeeded(SimpleNamespace(traces=[trace(0.0), trace(1.0)]))
    for lost in ([], [trace(0.9)], [trace(1.0, trainable=False)], [trace(1.0, has_error=True)]):
        assert not succeeded(SimpleNamespace(traces=lost))


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} cannot be imported here: {error}")
