"""verl 0.9.1 with HORA, untested in a training run: an agent-loop manager whose workers divide the
rollouts of their prompts in rounds.

    python -m verl.trainer.main_ppo trainer.use_v1=True algorithm.adv_estimator=grpo \
        actor_rollout_ref.rollout.n=32 \
        +actor_rollout_ref.rollout.agent.agent_loop_manager_class=examples.verl_hora.HoraManager \
        +hora.pre_rollouts=8 +hora.rounds=4 +hora.rule=first_hit +hora.stop=hit ...

`rollout.n` stays the mean group size: each worker spends `n` rollouts per prompt of the chunk that it gets,
exactly, so that verl's mini-batches divide as before. A success is a reward of at least 1. verl normalises by
prompt (its uid) but averages the loss over completions, so a prompt counts by the size of its group.
"""

import asyncio
import logging
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from hora_rl.allocator import Session

logger = logging.getLogger(__name__)
SETTINGS = {"pre_rollouts": 8, "rule": "hit_utility", "rounds": 1, "stop": "none"}


class OpenShard:
    """A shard whose prompts wait for each other at the end of each round."""

    def __init__(self, prompts: int, group_size: int, pre_rollouts: int, **settings: Any) -> None:
        self._session = Session(prompts, prompts * (group_size - pre_rollouts), **settings)
        self._open, self._hits = np.full(prompts, pre_rollouts), np.zeros(prompts, dtype=np.int64)
        self._round = self._open.copy()
        self.following: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()

    def arrived(self, index: int, success: bool) -> None:
        """Count a completion of the round; the last one begins the next, which is empty at the end."""
        self._open[index] -= 1
        self._hits[index] += success
        if self._open.any():
            return
        self._session.tell(self._hits, self._round)
        self._round = self._session.ask()
        self._open, self._hits = self._round.copy(), np.zeros_like(self._hits)
        complete, self.following = self.following, asyncio.get_running_loop().create_future()
        complete.set_result(self._round)


class HoraWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc, name-defined]
    """The chunk of one call of `generate_sequences` is a shard. Validation is verl's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prompts: dict[str, tuple[OpenShard, int]] = {}

    async def generate_sequences(self, batch: Any) -> None:
        validate = batch["validate"] if "validate" in batch else False  # noqa: SIM401, a TensorDict
        if not validate:
            uids, settings = list(batch["uid"]), {**SETTINGS, **self.config.get("hora", {})}
            shard = OpenShard(len(uids), self.config.actor_rollout_ref.rollout.n, **settings)
            self.prompts |= {uid: (shard, index) for index, uid in enumerate(uids)}
        await super().generate_sequences(batch)

    async def _run_prompt(
        self,
        prompt: dict[str, Any],
        sampling_params: dict[str, Any],
        trajectory: dict[str, Any],
        trace: bool = False,
    ) -> None:
        if trajectory["validate"]:
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
            return
        uid, failed, first = prompt["uid"], False, 0
        shard, index = self.prompts.pop(uid)
        await tq.async_kv_put(key=uid, partition_id="train", tag={"status": "running"})
        n = {**SETTINGS, **self.config.get("hora", {})}["pre_rollouts"]
        while True:
            following = shard.following
            sessions = [
                self._session(
                    shard, index, sampling_params, trajectory, trace, {**prompt, "session_id": first + j}
                )
                for j in range(n)
            ]
            failed |= not all(await asyncio.gather(*sessions))
            extra, first = await following, first + n
            if not extra.any():
                break
            n = int(extra[index])
        status = "failure" if failed else "finished"
        await tq.async_kv_put(key=uid, partition_id="train", tag={"status": status})

    async def _session(
        self,
        shard: OpenShard,
        index: int,
        sampling_params: dict[str, Any],
        trajectory: dict[str, Any],
        trace: bool,
        prompt: dict[str, Any],
    ) -> bool:
        """Sample one completion; whether it could be sampled. One that could not counts as no success."""
        try:
            score = await self._run_agent_loop(dict(sampling_params), trajectory, trace=trace, **prompt)
        except Exception:  # as verl's own: the prompt is marked as failed, the others go on
            logger.exception("rollout of %s failed", prompt["uid"])
            shard.arrived(index, False)
            return False
        shard.arrived(index, score is not None and score >= 1)
        return True

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | list[AgentLoopOutput], validate: bool, **kwargs: Any
    ) -> float | None:
        """verl's, and the completion's reward for whoever ran it."""
        await super()._agent_loop_postprocess(output, validate, **kwargs)
        outputs = output if isinstance(output, list) else [output]
        return outputs[-1].reward_score if outputs else None


class HoraManager(AgentLoopManagerTQ):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(HoraWorker)
