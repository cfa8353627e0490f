"""The real learner process: killed anywhere, cut over any ranks, it ends with the same weights."""

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from hora_rl.common.config import Config
from hora_rl.common.errors import DamagedWeights
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.telemetry import heartbeat_now
from hora_rl.common.types import Group
from hora_rl.common.weights.announcement import check_file, mark_of, newest_now
from hora_rl.deploy.machine.redis_server import RedisServer
from hora_rl.evaluation.rollout_table import read_rollouts
from hora_rl.learner.checkpoints.export import export_checkpoint
from hora_rl.learner.checkpoints.origin import step_of
from tests.support.groups import fill
from tests.support.jsonl import lines
from tests.support.ports import until
from tests.support.real_learner import finish, recorded, said, small_run, start, trained

STEPS, GAMMA = 6, 4
PAIR = 2  # prompts of a batch
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def configuration(folder: Path, *more: str) -> Config:
    settings = (f"learner.steps={STEPS}", "learner.checkpoint_every=2", "learner.tokens_per_microbatch=512")
    return small_run(folder, GAMMA, *settings, "rollout.group_size=6", "rollout.max_staleness=1", *more)


def groups(config: Config, lag: int = 0) -> list[Group]:
    rng = np.random.default_rng(0)
    lengths = [rng.integers(5, 60, int(rng.integers(3, 12))).tolist() for _ in range(STEPS * GAMMA)]
    return recorded(config, lengths, per_batch=GAMMA, lag=lag)


def uninterrupted(folder: Path, *more: str) -> dict[str, torch.Tensor]:
    config = configuration(folder, *more)
    return trained(config, groups(config), folder)


def whole_table(config: Config) -> pa.Table:
    """The run's rollouts, of which each one of each group is there once."""
    table = read_rollouts(Path(config.run.folder) / "r")
    names = ("prompt", "number", "length", "success")
    assert sorted(zip(*(table[n].to_pylist() for n in names), strict=True)) == sorted(
        (g.prompt_index, i, len(r.tokens), r.success)
        for g in groups(config)
        for i, r in enumerate(g.rollouts)
    )
    return table


DAPO = ("learner.objective.loss=dapo",)
LORA = ("learner.lora.rank=4", "learner.objective.kl=0.01", "learner.zero_stage=2")


@pytest.mark.parametrize("more", [(), DAPO, LORA], ids=["defaults", "dapo", "lora"])
def test_a_learner_killed_at_random_moments_ends_with_the_same_weights_bit_by_bit(
    tmp_path: Path, more: tuple[str, ...], redis_server: RedisServer
) -> None:
    expected = uninterrupted(tmp_path / "whole", *more)
    folder = tmp_path / "killed"
    folder.mkdir()
    config, rng = configuration(folder, *more), random.Random(0)
    fill(config, redis_server, groups(config))
    client, keys = connect(redis_server.url), Keys("r")
    for step in (1, 3, 4):
        process = start(config, redis_server, folder)
        while int(client.hget(keys.state, "step") or 0) < step:
            assert process.poll() is None, said(folder)[-3000:]
            time.sleep(0.002)
        time.sleep(rng.random() * 0.2)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    result = finish(start(config, redis_server, folder), folder)
    assert client.xlen(keys.groups) == 0, "everything is in the last checkpoint"
    assert all(torch.equal(result[name], expected[name]) for name in expected)
    of_groups = lines(folder / "r" / "groups.jsonl")
    assert sorted(g["prompt_index"] for g in of_groups) == list(range(STEPS * GAMMA)), "each in one step"
    assert [s["step"] for s in lines(folder / "r" / "steps.jsonl")] == list(range(STEPS))
    table = whole_table(config)
    trained_in = {(g["step"], g["group_id"]) for g in of_groups}
    assert {*zip(table["step"].to_pylist(), table["group"].to_pylist(), strict=True)} == trained_in


@pytest.mark.parametrize(
    ("ranks", "stage"), [(1, 1), (1, 2), (1, 3), *((2, s) for s in range(4)), (4, 0), (4, 3)]
)
def test_ranks_and_zero_stages_train_the_same_model(tmp_path: Path, ranks: int, stage: int) -> None:
    # Plain descent: Adam's first steps divide by gradients of any size and would magnify rounding.
    settings = ("learner.optimizer.epsilon=1.0", "learner.optimizer.learning_rate=0.1")
    alone = uninterrupted(tmp_path / "alone", *settings)
    mine = f"learner.zero_stage={stage}", f"learner.workers={ranks}"
    other = uninterrupted(tmp_path / "other", *settings, *mine)
    initial = load_file(Path(configuration(tmp_path).model.path) / "model.safetensors")
    moved = torch.cat([(alone[n] - initial[n]).flatten() for n in alone]).norm()
    apart = torch.cat([(alone[n] - other[n]).flatten() for n in alone]).norm()
    assert moved > 0
    assert apart / moved < 1e-4
    run, config = tmp_path / "other" / "r", configuration(tmp_path / "other")
    recorded_by_ranks = sorted(g["prompt_index"] for g in lines(run / "groups.jsonl"))
    assert recorded_by_ranks == list(range(STEPS * GAMMA)), "each by the rank that has it"
    whole_table(config)
    export_checkpoint(run, config, None, tmp_path / "exported")
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert all(torch.equal(exported[n], other[n]) for n in other), "the last checkpoint is the run's model"
    assert step_of(str(tmp_path / "exported")) == step_of(str(run / "model")) == STEPS


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 3)])
def test_drift_is_measured_though_no_token_of_a_step_is_of_its_version_and_nothing_else_changes(
    tmp_path: Path, ranks: int, stage: int
) -> None:
    settings = (f"learner.zero_stage={stage}", f"learner.workers={ranks}")
    on_time = uninterrupted(tmp_path / "on-time", *settings)
    config = configuration(tmp_path / "late", *settings)
    late = trained(config, groups(config, lag=1), tmp_path / "late")
    assert all(torch.equal(late[n], on_time[n]) for n in late)
    steps = lines(tmp_path / "late" / "r" / "steps.jsonl")
    assert [s["lag/max"] for s in steps] == [0] + [1] * (STEPS - 1)
    assert [s["step"] for s in steps if s.get("drift", 0.0) > 0.1] == list(range(0, STEPS - 1, 2)), (
        "two steps have tokens enough for a measurement, and no group of the last version was ever sampled"
    )


def test_a_version_that_was_announced_and_not_counted_is_counted_by_the_next_learner(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    config = small_run(tmp_path, PAIR, "learner.steps=1", "rollout.max_staleness=0")
    client, state = connect(redis_server.url), Keys("r").state
    fill(config, redis_server, recorded(config, [[9, 12]] * PAIR, per_batch=PAIR))
    finish(start(config, redis_server, tmp_path), tmp_path)
    assert client.hget(state, "version") == b"1"
    client.hset(state, "version", 0)  # as when it dies while the replicas load what was announced
    finish(start(config, redis_server, tmp_path), tmp_path)
    assert client.hget(state, "version") == b"1"


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 3)])
def test_weights_that_a_replica_found_damaged_are_published_again_while_their_batch_is_waited_for(
    tmp_path: Path, ranks: int, stage: int, redis_server: RedisServer
) -> None:
    """Without staleness nobody could sample the next batch, and no step could make another version."""
    settings = ("rollout.max_staleness=0", f"learner.workers={ranks}", f"learner.zero_stage={stage}")
    config = small_run(tmp_path, PAIR, *settings, "learner.steps=2")
    client, groups = connect(redis_server.url), recorded(config, [[9, 12]] * 2 * PAIR, per_batch=PAIR)
    fill(config, redis_server, groups[:PAIR])
    learner = start(config, redis_server, tmp_path)
    until(lambda: client.hget(Keys("r").state, "version") == b"1", limit_s=200, process=learner)
    manifest = newest_now(client, "r")
    os.truncate(manifest.path, 1000)
    with pytest.raises(DamagedWeights):
        check_file(manifest.update_info())
    result = {"version": 0, "damaged": (1, mark_of(manifest.path))}
    heartbeat_now(client, "r", "generator/a", result)
    until(lambda: os.path.getsize(manifest.path) == manifest.bytes, limit_s=200, process=learner)
    again = newest_now(client, "r")
    assert (again.version, again.digest) == (1, manifest.digest)
    check_file(again.update_info()).close()
    fill(config, redis_server, groups[PAIR:])
    finish(learner, tmp_path)
    assert client.hget(Keys("r").state, "republished") == b"1", "once for each file that is found damaged"
