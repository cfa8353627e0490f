"""Training rows of each data source, and the composition of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hora_rl.actors.data.datasets import Dataset, load_dataset, usable_held_out
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.common.config import Config, DataConfig, ModelConfig
from hora_rl.common.data.prompt_order import Mixture, counts_of, mixed_rows
from hora_rl.common.data.prompts import load_tokenizer, prompt_of, refuse_unknown, render
from hora_rl.common.errors import ConfigError
from hora_rl.common.model.model_files import vocabulary_rows
from hora_rl.deploy.checks.findings import Finding, Target, ok, plural, warn
from hora_rl.evaluation.benchmarks import known_leaks, refuse_long

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 5
"""Rows listed by name per problem; more are only counted."""
BATCHES = 200
"""Batches over which rows per source are counted."""


def data(target: Target) -> Iterator[Finding]:
    """Whether the training rows are readable, verifiable, within the limits and enough for a batch."""
    config = target.config
    if not target.trains:
        return
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    if config.evaluation.path:
        problems = usable_held_out(config)
        rendered = list(_lengths(config.model, tokenizer, problems, config.evaluated.data))
        refuse_long(problems.name, rendered, config.rollout.max_prompt_tokens)
        yield from (ok("layout", f"evaluation: {layout}") for layout in problems.layouts)
    lengths: list[list[int]] = []
    for source in config.source_names:
        lengths.append([])
        yield from _usable(config, source, tokenizer, lengths[-1])
    mixture = Mixture(tuple(map(len, lengths)), config.weights_of_sources)
    yield ok("data", "; ".join(_parts(config, mixture, lengths)))
    if config.data.rest:
        steps, gamma = config.learner.steps, config.rollout.prompts_per_batch
        last = mixed_rows(steps - 1, gamma, mixture, config.run.seed, config.data.shuffle)
        if not any(epoch for epoch, _ in last):
            says = f"data.rest changes nothing: {steps} steps of {gamma} prompts end in the first epoch"
            yield warn("data", says, "train for more steps, or leave it out")


def _parts(config: Config, mixture: Mixture, lengths: Sequence[Sequence[int]]) -> Iterator[str]:
    """Prompts of each source and its part of a batch. Raises ConfigError for a source with too few."""
    gamma, batches = config.rollout.prompts_per_batch, range(min(config.learner.steps, BATCHES))
    counts = [counts_of(batch, gamma, mixture) for batch in batches]
    for k, (source, tokens) in enumerate(zip(config.source_names, lengths, strict=True)):
        least, most = min(c[k] for c in counts), max(c[k] for c in counts)
        key = f"data.sources.{source}" if source else f"data.path {config.data.path}"
        if most > len(tokens):
            raise ConfigError(
                f"{key}: {plural(len(tokens), 'usable prompt')}, and a batch takes {most} of it (of "
                f"rollout.prompts_per_batch = {gamma}): use more rows, a smaller batch or a lower weight"
            )
        says = f"{plural(len(tokens), 'prompt')} of {min(tokens)} to {max(tokens)} tokens"
        if source:
            share = mixture.weights[k] / sum(mixture.weights)
            takes = str(least) if least == most else f"{least} to {most}"
            says = (
                f"{source}: {says}, {share:.0%}: {takes} of the {gamma} prompts of a batch, an epoch every "
                f"{len(tokens) / (share * gamma):,.1f} batches"
            )
        yield says
    mixed_rows(0, gamma, mixture, config.run.seed, config.data.shuffle)


def _usable(
    config: Config, source: str, tokenizer: PreTrainedTokenizerBase, usable: list[int]
) -> Iterator[Finding]:
    """Findings about the rows of one source. Appends the tokens of its usable prompts to `usable`. Raises
    ConfigError if there is none."""
    settings, limit = config.of(source), config.rollout.max_prompt_tokens
    dataset = load_dataset(settings.data, gold_test(settings.reward))
    lengths = list(_lengths(config.model, tokenizer, dataset, settings.data))
    usable += [n for n in lengths if n <= limit]
    yield from (ok("layout", f"{source}: {each}" if source else each) for each in dataset.layouts)
    rejected = [f"left out: {row.location}: {row.reason}" for row in dataset.rejected]
    yield from _some(rejected, "rows are left out")
    leaks = [f"training row {x.location} equals {x.known}" for x in known_leaks(config, dataset.rows)]
    yield from _some(leaks, "training rows equal benchmark problems; Pass@K on these measures memory")
    if again := len(dataset) - len({(row.problem, str(row.messages)) for row in dataset.rows}):
        says = f"{plural(again, 'row')} of {len(dataset)} repeat an earlier problem: each is a prompt"
        yield warn("data", says)
    if too_long := len(lengths) - len(usable):
        says = f"left out: {plural(too_long, 'prompt')} longer than rollout.max_prompt_tokens = {limit}"
        yield warn("data", says)
    if not usable:
        key = f"data.sources.{source}" if source else f"data.path {settings.data.path}"
        raise ConfigError(f"{key}: none of its rows can be used")


def _lengths(
    model: ModelConfig, tokenizer: PreTrainedTokenizerBase, dataset: Dataset, data: DataConfig
) -> Iterator[int]:
    """Tokens of each prompt. Raises ConfigError for one with a token that the model has no row for."""
    rows = vocabulary_rows(model)
    for row in dataset.rows:
        try:
            tokens = render(tokenizer, row.problem, data, row.messages)
        except ConfigError as error:  # of messages: the row's; else of every row
            raise ConfigError(f"{row.location}: {error}" if row.messages else str(error)) from None
        if not len(tokens):
            raise ConfigError(f"{prompt_of(row)} has no token: the chat template writes nothing of it")
        refuse_unknown(tokenizer, tokens, rows, prompt_of(row))
        yield len(tokens)


def _some(lines: list[str], summary: str) -> Iterator[Finding]:
    """The first few lines as warnings, and their total number."""
    more = [f"{len(lines)} {summary}"] * (len(lines) > SHOWN)
    yield from (warn("data", line) for line in (*lines[:SHOWN], *more))
