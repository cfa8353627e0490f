"""A run keeps the settings and prompts it has begun with: on a real Redis."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.coordinator.identity import claim_identity, fingerprint
from hora_rl.common.config import Config, RewardConfig
from hora_rl.common.data.prompts import load_tokenizer, make_prompt
from hora_rl.common.data.rows import Row
from hora_rl.common.errors import RunError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.common.load import load
from hora_rl.common.types import Prompt
from hora_rl.deploy.machine.redis_server import RedisServer
from tests.support.simulated import prompts

KEYS = Keys("r")
PROMPTS = prompts(5)


def config_of(**settings: Any) -> Config:
    return load("tiny", ["run.name=r", *(f"{k.replace('__', '.')}={v}" for k, v in settings.items())])


async def start(server: RedisServer, config: Config, data: Sequence[Prompt]) -> None:
    async with connect_async(server.url) as client:
        await claim_identity(client, config, data)


async def begin(server: RedisServer) -> Any:
    """A run with a plan, and a client of its Redis."""
    await start(server, config_of(), PROMPTS)
    client = connect(server.url)
    client.hset(KEYS.plans, "0:0", "{}")
    return client


def stored(client: Any) -> Config:
    return Config.model_validate_json(client.get(KEYS.config))


async def test_a_run_that_has_begun_refuses_other_settings_by_name(redis_server: RedisServer) -> None:
    client, own = await begin(redis_server), config_of()
    changed = config_of(run__seed=5, rollout__prompts_per_batch=8, generator__replicas=3)
    with pytest.raises(RunError) as refused:
        await start(redis_server, changed, PROMPTS)
    said = str(refused.value)
    assert f"rollout.prompts_per_batch: {own.rollout.prompts_per_batch} != 8; run.seed: 0 != 5" in said
    assert "generator.replicas" not in said
    assert stored(client) == own


async def test_a_run_that_has_begun_may_be_scaled_moved_and_prolonged(redis_server: RedisServer) -> None:
    client = await begin(redis_server)
    parts = {"generator__replicas": 3, "verifier__processes": 2, "coordinator__replicas": 2}
    places = {"queue__url": "redis://elsewhere:1", "telemetry__http_port": 0, "learner__workers": 2}
    changed = config_of(**parts, **places, rollout__shards_in_flight=2, learner__steps=999)
    await start(redis_server, changed, PROMPTS)
    assert stored(client) == changed


async def test_before_its_first_plan_a_run_may_become_another(redis_server: RedisServer) -> None:
    await start(redis_server, config_of(), PROMPTS)
    await start(redis_server, config_of(run__seed=5), prompts(9))
    client = connect(redis_server.url)
    assert stored(client).run.seed == 5
    assert json.loads(client.hget(KEYS.state, "prompts"))["n"] == 9


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "change", [{"text": "another"}, {"answer": "2"}, {"tokens": np.array([3, 9], np.int32)}, None]
)
async def test_other_prompts_under_the_same_settings_are_refused(
    redis_server: RedisServer, change: dict[str, Any] | None, begun: bool
) -> None:
    client = await begin(redis_server)
    if not begun:  # coordinators of one application, on machines that hold different data
        client.delete(KEYS.plans)
    await start(redis_server, config_of(), PROMPTS)
    others = PROMPTS[:4] if change is None else [*PROMPTS[:3], replace(PROMPTS[3], **change), PROMPTS[4]]
    with pytest.raises(RunError, match=r"has begun with 5 prompts .* gives (4|5) others"):
        await start(redis_server, config_of(), others)
    assert json.loads(client.hget(KEYS.state, "prompts"))["n"] == 5


async def test_settings_that_came_with_a_newer_version_are_no_change(redis_server: RedisServer) -> None:
    client = await begin(redis_server)
    older = json.loads(client.get(KEYS.config))
    del older["rollout"]["attempts"], older["allocation"]["max_group_size"]
    client.set(KEYS.config, json.dumps(older))
    await start(redis_server, config_of(), PROMPTS)
    assert stored(client) == config_of()


async def test_a_run_of_another_schema_is_refused_in_one_line(redis_server: RedisServer) -> None:
    client = await begin(redis_server)
    known = json.loads(client.hget(KEYS.state, "prompts"))
    client.hset(KEYS.state, "prompts", json.dumps({k: v for k, v in known.items() if k != "schema"}))
    with pytest.raises(RunError, match="run 'r' was begun by another version of hora") as refused:
        await start(redis_server, config_of(), PROMPTS)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "same"), [("accuracy", True), ("code_tests", False), ("own:f", False)])
def test_other_tests_are_other_prompts_where_rewards_read_them(name: str, same: bool) -> None:
    tokenizer = load_tokenizer(load("tiny").model.path)
    reward, found = RewardConfig(weights={name: 1.0}), set[str]()
    for tests in (["1"], ["2"]):
        row = Row(0, "1+1=?", "2", {"answer": "2", "tests": tests})
        prompt = make_prompt(tokenizer, 0, row, load("tiny").data, reads_row=reward.reads_rows)
        found.add(fingerprint([prompt]))
    assert (len(found) == 1) is same
