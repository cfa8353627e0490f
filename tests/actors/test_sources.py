"""A run over several data sources: prompts, order, rewards and figures of each, and what it refuses."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hora_rl.actors.coordinator.calls import verifier_calls
from hora_rl.actors.coordinator.deployment import render_prompts
from hora_rl.actors.coordinator.store import mixture_of
from hora_rl.actors.verifier.pool import VerifierPool
from hora_rl.common.config import Config
from hora_rl.common.data.prompts import load_tokenizer
from hora_rl.common.data.rewards import Answer
from hora_rl.common.errors import ConfigError, RunError, WireError
from hora_rl.common.live.keys import Keys
from hora_rl.common.live.redis import connect
from hora_rl.common.live.staleness import Entry
from hora_rl.common.load import from_args
from hora_rl.common.types import Completion, Group, Prompt, Scored
from hora_rl.common.wire import encode_extra, encode_pre_rollouts
from hora_rl.deploy.checks import sources
from hora_rl.deploy.checks.findings import Target
from hora_rl.evaluation.audit import audit
from hora_rl.evaluation.audit_records import gather
from hora_rl.learner.feed.admission import Vocabulary, admitted
from hora_rl.learner.records.recorder import step_metrics
from hora_rl.learner.records.step_records import group_record
from hora_rl.learner.rows.estimator import estimator_of
from tests.support.coordination import begun, killed, payloads_of, records, trained
from tests.support.groups import completion, group, rollout
from tests.support.handles import Handle
from tests.support.simulated import Fleet

GAMMA, G, STEPS = 6, 5, 5
NO_SUCCESS = {"data": {"sources": {"a": {"path": "arithmetic", "reward": {"weights": {"x:y": 1}}}}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, n in (("sums", 20), ("words", 5)):
        rows = [{"q": f"{name} {i}", "answer": str(i), "extra": i} for i in range(n)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def arguments(folder: Path, **more: dict[str, Any]) -> dict[str, Any]:
    sums = {"path": str(folder / "sums.jsonl"), "prompt_field": "q", "weight": 2, "system": None}
    reward = {"weights": {"accuracy": 1.0}, "success_at": 0.5, "answer": "final"}
    words = {"path": str(folder / "words.jsonl"), "prompt_field": "q", "template": "{problem}="}
    rollout = {"prompts_per_batch": GAMMA, "group_size": G, "pre_rollouts": 2, "shards": 2}
    base: dict[str, Any] = {
        "run": {"name": "mixed", "folder": str(folder / "runs")},
        "model": {"path": "deploy/demo/model", "dtype": "float32"},
        "data": {"sources": {"sums": sums, "words": words | {"reward": reward}}},
        "rollout": rollout | {"max_prompt_tokens": 32, "max_response_tokens": 64},
        "allocation": {"warmup": {"enabled": False}},
        "learner": {"steps": STEPS, "tokens_per_microbatch": 8192},
    }
    return {k: {**base.get(k, {}), **more.get(k, {})} for k in base.keys() | more.keys()}


def configured(folder: Path, **more: dict[str, Any]) -> Config:
    return from_args(arguments(folder, **more))


def test_prompts_are_rendered_by_their_source_and_numbered_one_source_after_the_other(folder: Path) -> None:
    config = configured(folder)
    prompts = render_prompts(config, load_tokenizer(config.model.path))
    assert [p.index for p in prompts] == list(range(25))
    assert [p.source for p in prompts] == ["sums"] * 20 + ["words"] * 5
    assert prompts[20].text == "words 0"
    assert prompts[20].row["extra"] == 0
    tokenizer = load_tokenizer(config.model.path)
    assert "words 0=" in tokenizer.decode(prompts[20].tokens)
    assert "=" not in tokenizer.decode(prompts[0].tokens).replace("<", "")
    assert mixture_of(config.data.sources, prompts).rows == (20, 5)


def test_each_source_asks_for_the_form_that_its_own_rewards_look_for(folder: Path) -> None:
    plain = {"path": str(folder / "sums.jsonl"), "prompt_field": "q"}
    boxed = {**plain, "reward": {"weights": {"accuracy": 1.0}, "answer": "boxed"}}
    config = configured(folder, data={"sources": {"tags": plain, "boxed": boxed}})
    said = {name: config.of(name).data.system or "" for name in config.source_names}
    assert ("<answer>" in said["tags"], "boxed" in said["tags"]) == (True, False)
    assert "\\boxed" in said["boxed"]
    again = Config.model_validate_json(config.model_dump_json())
    assert again == config


def pool_of(config: Config) -> VerifierPool:
    return VerifierPool(config.reward, sources={n: config.of(n).reward for n in config.source_names})


async def test_a_judge_has_the_time_of_its_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = {"weights": {"accuracy": 1.0}, "time_limit_s": 60.0}
    sums = {"path": str(folder / "sums.jsonl"), "prompt_field": "q", "weight": 2, "reward": patient}
    config = configured(folder, data={"sources": {"sums": sums, "words": {**sums, "reward": None}}})
    given: list[float] = []

    async def equal(gold: str, answer: str, seconds: float) -> bool:
        given.append(seconds)
        return True

    with closing(pool_of(config)) as pool:
        monkeypatch.setattr(pool, "_verify", equal)
        said = "<answer>\\frac{1}{2}</answer>"  # not equal to the gold answer letter by letter
        for source in config.source_names:
            await pool.score_batch([Answer("1/2=?", said, "0.5", source=source)])
    assert given == [60.0, 5.0]


async def test_a_completion_is_judged_by_the_rewards_of_its_source(folder: Path) -> None:
    config, tokens = configured(folder), np.zeros(3, np.int32)
    done, found = completion(tokens, "the answer is 7"), list[Scored]()
    with closing(pool_of(config)) as pool:
        score = verifier_calls(Handle(pool.score_batch), config)  # type: ignore[arg-type]
        for source in config.source_names:
            found += await score(Prompt(0, "3+4", "7", tokens, source=source), [done])
    sums, words = found
    assert (sums.rewards, sums.success) == ({"format": 0.0, "accuracy": 0.0}, False)
    assert (words.rewards, words.success) == ({"accuracy": 1.0}, True)


async def by_source(prompt: Prompt, completions: Sequence[Completion]) -> list[Scored]:
    right = [float(i % 2 == prompt.index % 2) for i in range(len(completions))]
    more = {"format": 1.0} if prompt.source == "sums" else {}
    return [Scored({"accuracy": r, **more}, r == 1.0) for r in right]


async def run(config: Config, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Group]:
    """The groups of a whole run whose coordinator dies in the middle."""
    prompts = render_prompts(config, load_tokenizer(config.model.path))
    fleet, payloads = Fleet(lambda request, _: 0.002), payloads_of(monkeypatch)
    first = begun(config, redis_url, fleet, "one", by_source, prompts)
    await asyncio.sleep(0.05)
    await killed(first)
    learner = await trained(config, redis_url, begun(config, redis_url, fleet, "two", by_source, prompts))
    client = connect(redis_url)
    assert audit(config, gather(client, config.run.name, lambda: records(learner, payloads))) == []
    return payloads


async def test_a_run_over_two_sources_is_exact_and_its_audit_follows_their_order(
    redis_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(folder)
    groups = await run(config, redis_url, monkeypatch)
    assert len(groups) == STEPS * GAMMA
    for batch in range(STEPS):
        own = [g for g in groups.values() if g.batch == batch]
        assert sum(g.size for g in own) == GAMMA * G
        assert [sum(g.source == s for g in own) for s in config.source_names] == [4, 2]
    assert {g.epoch for g in groups.values() if g.source == "sums"} == {0}
    assert {g.epoch for g in groups.values() if g.source == "words"} == {0, 1, 2}  # 5 rows, two a batch
    client, keys = connect(redis_url), Keys("mixed")
    assert json.loads(client.hget(keys.state, "prompts"))["rows"] == [20, 5]
    facts = gather(client, "mixed", list)
    other = configured(folder, data={"sources": {**arguments(folder)["data"]["sources"]}}, run={"seed": 1})
    assert any("not in the order" in line for line in audit(other, facts))
    heavier = arguments(folder)
    heavier["data"]["sources"]["words"]["weight"] = 2
    with pytest.raises(RunError, match=r"data\.sources\.words\.weight: 1\.0 != 2\.0"):
        await begun(from_args(heavier), redis_url, data=render_prompts(config))


def made(config: Config) -> list[Group]:
    def rewarded(accuracy: float, **more: float) -> Any:
        return rollout(success=accuracy == 1.0, rewards={"accuracy": accuracy, **more})

    sums = group(0, [rewarded(1.0, format=1.0), rewarded(0.0, format=1.0)], pre_rollouts=2)
    words = group(20, [rewarded(1.0), rewarded(1.0), rewarded(0.0), rewarded(0.0)], pre_rollouts=4)
    return [replace(sums, source="sums"), replace(words, source="words")]


def test_advantages_and_figures_are_by_the_rewards_of_the_source(folder: Path) -> None:
    config = configured(folder, learner={"objective": {"advantage": "dr_grpo"}})
    sums, words = made(config)
    estimator = estimator_of(config)
    assert estimator.advantages(sums).tolist() == [0.25, -0.25]  # accuracy weighs a half
    assert estimator.advantages(words).tolist() == [0.5, 0.5, -0.5, -0.5]
    sizes = {"packing/flops": 1.0, "packing/tokens": 1.0}
    found = step_metrics(0, [sums, words], sizes, config, ranks=1, grad_norm=0.0, learning_rate=0.0)
    assert found["reward/format"] == 1.0
    assert found["reward"] == pytest.approx((0.75 + 0.5) / 2)
    split = {k.removeprefix("source/"): v for k, v in found.items() if k.startswith("source/")}
    for source, rollouts, reward in (("sums", 2, 0.75), ("words", 4, 0.5)):
        wanted = {"groups": 1, "groups/hit": 1.0, "success": 0.5, "reward": reward}
        wanted |= {"rollouts": rollouts, "tokens": 3 * rollouts}
        assert {k.partition("/")[2]: v for k, v in split.items() if k.startswith(source)} == wanted
    record = group_record(0, words, config)
    assert (record["source"], record["rewards"], record["reward_mean"]) == ("words", {"accuracy": 0.5}, 0.5)


def test_check_counts_what_a_batch_takes_of_each_source_and_refuses_one_too_small(folder: Path) -> None:
    [said] = [f.says for f in sources.data(Target(configured(folder))) if f.level == "ok"]
    assert "sums: 20 prompts of " in said
    assert "67%: 4 of the 6 prompts of a batch, an epoch every 5.0 batches" in said
    assert "words: 5 prompts of " in said
    heavy = arguments(folder)
    heavy["data"]["sources"]["words"]["weight"] = 100
    with pytest.raises(ConfigError) as refused:
        list(sources.data(Target(from_args(heavy))))
    assert "data.sources.words: 5 usable prompts, and a batch takes 6 of it" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"data": {"path": "arithmetic"}}, "data.path and data.sources exclude each other"),
        ({"data": {"prompt_field": "q"}}, "data.prompt_field and data.sources exclude each other"),
        ({"data": {"sources": {"a b": {"path": "arithmetic"}}}}, "data.sources.a b.[key] ('a b')"),
        ({"data": {"sources": {"a": {"weight": 2}}}}, "data.sources.a.path"),
        ({"data": {"sources": {"a": {"path": "arithmetic", "weight": 0}}}}, "data.sources.a.weight (0)"),
        ({"data": {"sources": {"a": {"path": "arithmetic", "wieght": 1}}}}, "data.sources.a.wieght:"),
        (NO_SUCCESS, "allocation.rule (hit_utility) counts successes, and no reward says what a success is"),
        ({"allocation": {"warmup": {"reward": "x:y"}}}, "is not computed for every source (rewards:"),
    ],
)
def test_what_cannot_be_mixed_is_one_line(folder: Path, change: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(folder, **change)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_group_of_a_source_that_the_run_does_not_have_is_foreign(folder: Path) -> None:
    config = configured(folder)
    group = made(config)[1]
    reasons = {"words": None, "others": "no data source 'others'", "sums": "its rewards must be"}
    for source, reason in reasons.items():
        mine = replace(group, source=source, run="mixed", tokenizer="t")
        messages = encode_pre_rollouts(mine), encode_extra(mine)
        entry = Entry("1-0", mine.id, mine.batch)
        if reason is None:
            assert admitted(config, Vocabulary("t", 80), 25, entry, messages).source == "words"
        else:
            with pytest.raises(WireError, match=reason):
                admitted(config, Vocabulary("t", 80), 25, entry, messages)
