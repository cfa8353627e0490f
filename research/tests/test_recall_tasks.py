"""Recall tasks: their content, that their success is exact, and that a cell trains in one process."""

import asyncio
import gc
import json
import re
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from hora_rl.actors.coordinator.shard import Draw
from hora_rl.common.config import Config, DataConfig, SourceConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.types import Prompt, Rollout
from research.study.cells import load_base
from research.study.local_sampler import LocalSampler
from research.study.loop import run_cell
from research.tasks.build import build
from research.tasks.catalogue import TASKS
from research.tasks.pretrained import arithmetic, multiples, problems
from research.tasks.recall import SAMPLES, ExactSuccess, SampledSuccess, encode_prompts, load_task, logprobs
from research.tasks.reward import ANY, TAGGED, answer_of, one_of
from tests.support.jsonl import lines
from tools.demo_models import MAX_TOKENS, make_model, make_tokenizer


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_pure_in_its_seed_and_its_sets_are_apart(name: str) -> None:
    (task, draw), (again, _), (other, _) = TASKS[name](0), TASKS[name](0), TASKS[name](1)
    assert task == again
    assert task != other
    every = [i for prompts in task.sets.values() for i in prompts]
    assert len(set(every)) == len(every)
    assert len({len(q) for q in task.questions}) == 1, "prompts of equal length are sampled in one batch"
    if transfer := task.sets.get("transfer"):  # the trained keys, asked in another form
        assert [task.right[i] for i in task.sets["trained"]] == [task.right[i] for i in transfer]
        assert not {task.questions[i] for i in task.sets["trained"]} & {task.questions[i] for i in transfer}
    prompts, answers, weights = draw(np.random.default_rng(0), 4000)
    right = [a in task.right[i] for i, a in zip(prompts, answers, strict=True)]
    assert 0.05 < np.average(right, weights=weights) < 0.9
    assert np.mean(weights) == pytest.approx(1.0, abs=0.1)


def test_sums_and_differences_of_two_digits_are_apart_and_have_answers_of_two_digits() -> None:
    task = arithmetic(0)
    assert task == arithmetic(0) != arithmetic(1)
    assert [len(s) for s in task.sets.values()] == [300, 300]
    assert len(set(task.questions)) == 600
    for question, (answer,) in zip(task.questions, task.right, strict=True):
        a, sign, b = question.split()
        assert int(answer) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
        assert len(a) == len(b) == len(answer) == 2


def test_multiples_have_six_right_answers_and_prompts_of_one_form() -> None:
    task = multiples(0)
    assert task == multiples(0) != multiples(1)
    assert [len(s) for s in task.sets.values()] == [151, 150]
    assert len(set(task.questions)) == 301
    for question, right in zip(task.questions, task.right, strict=True):
        k, _, low, _, high = question.split()
        between = range(int(low) + 1, int(high))
        assert right == tuple(str(x) for x in between if x % int(k) == 0)
        assert (len(k), len(low), len(high)) == (1, 2, 2)
        assert {len(r) for r in right} == {2}


def test_word_problems_of_one_step_end_in_their_answer() -> None:
    task = problems(0)
    assert task == problems(0) != problems(1)
    assert [len(s) for s in task.sets.values()] == [300, 32]
    assert len(set(task.questions)) == 332
    for question, (answer,) in zip(task.questions, task.right, strict=True):
        a, b = map(int, re.findall(r"\d+", question))
        sign = next(s for word, s in {"buys": "+", "gives": "-", "boxes": "*"}.items() if word in question)
        assert int(answer) == {"+": a + b, "-": a - b, "*": a * b}[sign] > 0


@pytest.mark.parametrize("name", ["facts", "many"])
def test_success_is_the_same_where_all_prompts_begin_alike(name: str) -> None:
    tokenizer, (task, _) = make_tokenizer(MAX_TOKENS), TASKS[name](0)
    model = make_model(tokenizer, 0)
    exact = ExactSuccess(task, "trained", tokenizer)
    apart = exact(model, range(40))
    exact._prompts = torch.cat([torch.full((len(exact._prompts), 7), 9), exact._prompts], dim=1)
    together = exact(model, range(40))
    with torch.no_grad():
        prompts, right = exact._prompts[:40], exact._right[:40].unbind(dim=1)
        plain = [logprobs(model, prompts, r).sum(dim=1).exp().double().numpy() for r in right]
    np.testing.assert_allclose(together, np.stack(plain, axis=1), rtol=1e-4, atol=0.0)
    assert not np.allclose(together, apart, rtol=1e-3, atol=0.0)


def test_rewards_take_one_of_the_right_answers_in_its_format_alone() -> None:
    assert answer_of(TAGGED.format("123")) == "123"
    assert one_of("q", TAGGED.format("123"), "999|123") == 1.0
    assert one_of("q", TAGGED.format("12"), "999|123") == 0.0
    assert one_of("q", "123", "999|123") == 0.0
    assert one_of("q", TAGGED.format(""), "999|123") == 0.0
    worked = "… The answer is {}."
    assert answer_of(" 2 + 3 = 5. The answer is 4. The answer is 5.", worked) == "5"
    assert [answer_of(text, worked) for text in ("5.", " The answer is 5", " The answer is 5. Q:")] == [
        None
    ] * 3


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task whose model saw a few demonstrations: its format is not followed yet."""
    folder = tmp_path_factory.mktemp("task") / "many"
    build("many", folder, steps=3)
    return folder


def configuration(folder: Path, out: Path, **settings: object) -> Config:
    fixed = {
        "run.name": "arm-seed0",
        "run.folder": out,
        "model.path": folder / "model",
        "data.path": folder / "trained.jsonl",
        "evaluation.path": None,
        "rollout.prompts_per_batch": 6,
        "rollout.shards": 1,
        "rollout.group_size": 8,
        "rollout.pre_rollouts": 2,
        "rollout.max_staleness": 0,
        "learner.steps": 2,
    }
    merged = {**fixed, **settings}
    return load_base("many", [f"{k}={json.dumps(v, default=str)}" for k, v in merged.items()])


def cell(config: Config) -> dict[str, Any]:
    """The record of a cell, run in another process because a learner leaves its process group behind."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return json.loads(pool.submit(run_cell, config, 1).result().read_text())


def engines_left(config: Config) -> int:
    run_cell(config, 1)
    gc.collect()
    return sum(type(each).__name__ == "DeepSpeedEngine" for each in gc.get_objects())


@pytest.mark.system
def test_a_cell_in_bfloat16_leaves_no_engine_in_its_process(task_folder: Path, tmp_path: Path) -> None:
    config = configuration(task_folder, tmp_path, **{"model.dtype": "bfloat16", "learner.steps": 1})
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(engines_left, config).result() == 0


@pytest.mark.system
def test_in_the_loop_prompts_rest_as_in_a_run(task_folder: Path, tmp_path: Path) -> None:
    """Half of the 150 prompts a batch, none with a hit: all rest in epoch 1, which no batch has."""
    shape = {"rollout.prompts_per_batch": 75, "rollout.group_size": 2, "rollout.pre_rollouts": 1}
    config = configuration(task_folder, tmp_path, **shape, **{"learner.steps": 4, "data.rest": ["unsolved"]})
    cell(config)
    epochs = defaultdict[int, set[int]](set)
    for group in lines(config.run.path / "groups.jsonl"):
        assert not group["hits"]
        epochs[group["step"]].add(group["epoch"])
    assert dict(epochs) == {0: {0}, 1: {0}, 2: {2}, 3: {2}}


@pytest.mark.system
def test_success_by_teacher_forcing_is_the_frequency_of_right_samples(task_folder: Path) -> None:
    tokenizer, task = make_tokenizer(MAX_TOKENS), load_task(task_folder)
    model, prompt = make_model(tokenizer, 0), encode_prompts([task.questions[0]], tokenizer)
    success = ExactSuccess(task, "trained", tokenizer)
    optimizer, right = torch.optim.Adam(model.parameters(), lr=3e-3), success._right[:1, 0]
    for _ in range(200):  # until it gives its first right answer with probability near one half
        if float(success(model)[0, 0]) > 0.4:
            break
        optimizer.zero_grad()
        (-logprobs(model, prompt, right).mean()).backward()
        optimizer.step()
    expected = float(success(model)[0].sum())
    assert 0.2 < expected < 0.999
    sampler = LocalSampler(model, tokenizer, configuration(task_folder, task_folder))
    prompt_ = Prompt(0, task.questions[0], "|".join(task.right[0]), prompt[0].int().numpy())
    rollouts = asyncio.run(sampler.sample(prompt_, Draw(0, 0, 0, 600)))
    assert stats.binomtest(sum(r.success for r in rollouts), 600, expected).pvalue > 1e-4
    one_prompt = replace(task, sets={"some": (0,) * 20})
    rate = SampledSuccess(one_prompt, "some", tokenizer, most=64).figures(model)["pass@1"]
    assert stats.binomtest(round(rate * 20 * SAMPLES), 20 * SAMPLES, expected).pvalue > 1e-4
    right_ = next(r for r in rollouts if r.success)
    with torch.no_grad():
        expected_ = logprobs(model, prompt, torch.from_numpy(right_.tokens)[None].long())[0]
    np.testing.assert_allclose(right_.logprobs, expected_.numpy(), atol=1e-4)


def test_every_round_samples_from_the_weights_of_its_version(task_folder: Path) -> None:
    tokenizer, task = make_tokenizer(MAX_TOKENS), load_task(task_folder)
    model, tokens = make_model(tokenizer, 0), encode_prompts(task.questions[:3], tokenizer)
    sampler = LocalSampler(model, tokenizer, configuration(task_folder, task_folder))
    prompts = [Prompt(i, "", "", t.int().numpy()) for i, t in enumerate(tokens)]

    async def in_one_round(chosen: tuple[int, ...]) -> list[list[Rollout]]:
        return await asyncio.gather(*(sampler.sample(prompts[i], Draw(i, 0, 0, 5)) for i in chosen))

    for version, rounds in enumerate((((0, 1, 2), (2, 0), (1,)), ((1, 2), (0, 1), (2,)))):
        sampler.version = version
        torch.nn.init.normal_(model.get_output_embeddings().weight)
        for chosen in rounds:
            for i, rollouts in zip(chosen, asyncio.run(in_one_round(chosen)), strict=True):
                for r in rollouts:
                    completion = torch.from_numpy(r.tokens)[None].long()
                    with torch.no_grad():
                        expected = logprobs(model, tokens[i : i + 1], completion)[0]
                    np.testing.assert_allclose(r.logprobs, expected.numpy(), atol=1e-4)


@pytest.mark.system
def test_a_cell_and_a_control_spend_their_budget_and_a_cell_is_repeated_bit_by_bit(
    task_folder: Path, tmp_path: Path
) -> None:
    records = []
    for name in ("one", "two"):
        settings = {"allocation.rounds": 3, "allocation.stop": "hit"}
        curves = cell(configuration(task_folder, tmp_path / name, **settings))
        curves.pop("seconds")
        records.append(curves)
        groups = lines(tmp_path / name / "arm-seed0" / "groups.jsonl")
        assert sum(group["size"] for group in groups) == 2 * 6 * 8
        assert max(len(group["rounds"]) for group in groups) == 3
    assert records[0] == records[1]
    assert [point["step"] for point in records[0]["curves"]["trained"]] == [0, 1, 2]
    weights = {"allocation.rule": "uniform", "learner.objective.group_weight": {"as_if": "hit_utility"}}
    control = cell(configuration(task_folder, tmp_path, **weights, **{"learner.steps": 1}))
    assert control["steps"][0]["rollouts"] == records[0]["steps"][0]["rollouts"] == 48


@pytest.mark.system
def test_a_cell_whose_right_answers_have_many_texts_is_evaluated_by_samples(
    task_folder: Path, tmp_path: Path
) -> None:
    folder = copytree(task_folder, tmp_path / "free")
    task = load_task(folder)
    sets = {**task.sets, "held-out": task.sets["trained"][:5]}
    replace(task, form=f"{ANY}<answer>{{}}</answer>", sets=sets).save(folder)
    record = cell(configuration(folder, tmp_path))
    assert [[*point] for point in record["curves"]["held-out"]] == [
        ["step", "pass@1", "pass@4", "pass@16"]
    ] * 3
    assert record["curves"].keys() == {"held-out"}
    assert all("p" not in group for group in lines(tmp_path / "arm-seed0" / "groups.jsonl"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout.max_staleness", 1),
        ("rollout.shards", 2),
        ("learner.workers", 2),
        ("evaluation.every", 5),
        ("environment.path", "guess"),
        ("reward.answer", "boxed"),
        ("data.sources", "easy, hard"),
    ],
)
def test_settings_that_one_process_cannot_follow_are_refused(
    tmp_path: Path, key: str, value: str | int
) -> None:
    config = configuration(tmp_path, tmp_path)
    if key == "data.sources":
        sources = {name: SourceConfig(path="arithmetic") for name in ("easy", "hard")}
        config = config.model_copy(update={"data": DataConfig(sources=sources)})
    else:
        config = configuration(tmp_path, tmp_path, **{"evaluation.path": "arithmetic", key: value})
    with pytest.raises(ConfigError, match=f"{key} is .*{value}"):
        run_cell(config, every=1)
    with pytest.raises(ConfigError, match=r"holds no task\.json"):
        run_cell(configuration(tmp_path, tmp_path), every=1)
