"""RUN/rollouts of made-up groups, written by the learner's own writer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hora_rl.common.data.prompts import load_tokenizer, render
from hora_rl.common.load import load
from hora_rl.common.types import Group, Origin, Rollout
from hora_rl.learner.records.rollout_writer import RolloutFiles
from tests.support.groups import group, rollout

Draw = Callable[[int, int], Sequence[Rollout]]
SOURCES = "data={sources: {easy: {path: 'arithmetic:1-2'}, hard: {path: 'arithmetic:4-5'}}}"
"""A run of two data sources, between which the prompts take turns."""


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(load("tiny").model.path)


def hit_and_miss(step: int, prompt: int) -> list[Rollout]:
    """A hit of Phase A, and a miss of Phase B of `5 + step` tokens that gets less likely with the prompt."""
    origin = Origin("a1b2c3", 100.0 + step, 100.5 + step, 101.0 + step, 101.25 + step)
    said = tokenizer().encode(f"<answer>{prompt}", add_special_tokens=False)
    end = [tokenizer().eos_token_id]
    hit = rollout(said[:2] + end, logprobs=-0.1, version=step, phase="A", success=True)
    miss = rollout((said * 8)[: 5 + step], logprobs=-1.0 - prompt, version=step, phase="B", success=False)
    return [replace(hit, origin=origin), replace(miss, origin=origin, finish_reason="length")]


def write_rollouts(
    run: Path, *settings: str, steps: int, prompts: int = 4, start: int = 0, draw: Draw = hit_and_miss
) -> dict[int, list[Group]]:
    """Files of steps `start` to `steps` - 1, each of which meets each prompt once; the groups by step."""
    config = load("tiny", settings)
    sources = config.source_names
    prompt = render(tokenizer(), "12+34=?", config.of(sources[0]).data)
    files = RolloutFiles(config, tokenizer(), run, start)
    written: dict[int, list[Group]] = {}
    for step in range(start, steps):
        where = [{"epoch": step, "batch": step, "source": sources[i % len(sources)]} for i in range(prompts)]
        written[step] = [group(i, draw(step, i), prompt=prompt, **w) for i, w in enumerate(where)]
        files.write(step, written[step])
    files.close()
    return written
