"""The example for verl, where that is installed."""

import asyncio
import importlib
import inspect
from typing import Any

import numpy as np
import pytest

from hora_rl.allocator import Session

RATES = np.array([0.0, 0.1, 0.5, 1.0])
G, G0 = 16, 4
SETTINGS: dict[str, Any] = {"rule": "first_hit", "rounds": 3, "stop": "hit"}


def expected(outcomes: np.ndarray) -> np.ndarray:
    """Group sizes of a session told in whole rounds; rows of `outcomes` are used from the left."""
    n = len(outcomes)
    session = Session(n, n * (G - G0), **SETTINGS)
    asked, used = np.full(n, G0), np.zeros(n, dtype=np.int64)
    while not session.done:
        hits = [row[u : u + k].sum() for row, u, k in zip(outcomes, used, asked, strict=True)]
        used += asked
        session.tell(hits, asked)
        asked = session.ask()
    return used


def test_verls_worker_spends_the_budget_through_verls_own_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = np.random.default_rng(5).random((len(RATES), len(RATES) * G)) < RATES[:, None]
    agent_loop_tq = pytest.importorskip("verl.trainer.ppo.v1.agent_loop_tq", exc_type=ImportError)
    verl_hora = importlib.import_module("examples.verl_hora")
    base = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    for method in ("_run_prompt", "generate_sequences", "_agent_loop_postprocess"):
        theirs, ours = (inspect.signature(getattr(c, method)) for c in (base, verl_hora.HoraWorker))
        # Ray adds `_ray_trace_ctx` to what it turns into an actor.
        assert [p for p in theirs.parameters if p != "_ray_trace_ctx"] == list(ours.parameters), method
    assert "self.agent_loop_workers_class" in inspect.getsource(agent_loop_tq.AgentLoopManager)
    assert base in verl_hora.HoraWorker.__mro__
    sizes = expected(outcomes)
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

    rollout = {"n": G, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "calculate_log_probs": True}
    rollout |= {"agent": {"default_agent_loop": "single_turn_agent"}}
    rollout_of = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": {}}})
    workers = verl_hora.HoraManager(rollout_of, None).agent_loop_workers_class
    assert issubclass(workers.__ray_metadata__.modified_class, verl_hora.HoraWorker)
    worker = object.__new__(verl_hora.HoraWorker)
    worker.config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": rollout}, "hora": {"pre_rollouts": G0, **SETTINGS}}
    )
    worker.background_tasks, worker.prompts = set(), {}
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
