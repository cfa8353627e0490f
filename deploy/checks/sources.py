"""Training rows of each data source, and the composition of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hora_rl.actors.data.datasets import Dataset, load_dataset, usable_held_out
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.common.config import Config, DataConfig, ModelConfig, RolloutConfig
from hora_rl.common.data.prompt_order import Mixture, counts_of, mixed_rows
from hora_rl.common.data.prompts import load_tokenizer, prompt_of, refuse_unknown, render
from hora_rl.common.errors import ConfigError
from hora_rl.common.model.model_files import vocabulary_rows
from hora_rl.deploy.checks.findings import Finding, Target, ok, plural
from hora_rl.evaluation.benchmarks import known_leaks, refuse_long

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 5
"""Rows listed by name per problem; more are only counted."""
BATCHES = 200
"""Batches over which rows per source are counted."""


@dataclass(frozen=True, slots=True)
class _Usable:
    """Usable prompts of a source: their lengths in tokens, and findings about its rows."""

    source: str
    lengths: Sequence[int]
    findings: Sequence[Finding]


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
    parts = [_usable(config, source, tokenizer) for source in config.source_names]
    for usable in parts:
        yield from usable.findings
    mixture = Mixture(tuple(len(usable.lengths) for usable in parts), config.weights_of_sources)
    if config.data.sources:
        yield ok("data", "; ".join(_parts(config, mixture, parts)))
    else:
        yield _whole(config.data.path, config.rollout, parts[0])
    if config.data.rest and not _comes_again(config, mixture):
        yield Finding(
            "warn",
            "data",
            f"data.rest ({', '.join(config.data.rest)}) changes nothing: {config.learner.steps} steps of "
            f"{config.rollout.prompts_per_batch} prompts end in the first epoch",
            "train for more steps, or leave it out",
        )


def _comes_again(config: Config, mixture: Mixture) -> bool:
    """Whether a source's second epoch begins within the run, without rests."""
    gamma, last = config.rollout.prompts_per_batch, config.learner.steps - 1
    return any(epoch for epoch, _ in mixed_rows(last, gamma, mixture, config.run.seed, config.data.shuffle))


def _whole(path: str, rollout: RolloutConfig, usable: _Usable) -> Finding:
    lengths = usable.lengths
    if len(lengths) < rollout.prompts_per_batch:
        raise ConfigError(
            f"data.path {path}: {plural(len(lengths), 'usable prompt')}, fewer than "
            f"rollout.prompts_per_batch = {rollout.prompts_per_batch}; use more rows or a smaller batch"
        )
    return ok("data", f"{plural(len(lengths), 'prompt')} of {min(lengths)} to {max(lengths)} tokens")


def _parts(config: Config, mixture: Mixture, parts: Sequence[_Usable]) -> Iterator[str]:
    """Prompts of each source and its part of a batch. Raises ConfigError for a source that is too small for
    its weight."""
    gamma, seen = config.rollout.prompts_per_batch, range(min(config.learner.steps, BATCHES))
    counts: list[list[int]] = []
    for batch in seen:
        counts.append(counts_of(batch, gamma, mixture))
        for usable, due in zip(parts, counts[-1], strict=True):
            if due > len(usable.lengths):
                raise ConfigError(
                    f"data.sources.{usable.source}: {plural(len(usable.lengths), 'usable prompt')}, and a "
                    f"batch takes {due} of it (its share of rollout.prompts_per_batch = {gamma}): lower "
                    "its weight, use more rows or a smaller batch"
                )
    mixed_rows(0, gamma, mixture, config.run.seed, config.data.shuffle)
    for k, usable in enumerate(parts):
        due_of = [count[k] for count in counts]
        least, most = min(due_of), max(due_of)
        share = mixture.weights[k] / sum(mixture.weights)
        takes = str(least) if least == most else f"{least} to {most}"
        yield (
            f"{usable.source}: {plural(len(usable.lengths), 'prompt')} of {min(usable.lengths)} to "
            f"{max(usable.lengths)} tokens, {share:.0%}: {takes} of the {gamma} prompts of a batch, an epoch "
            f"every {len(usable.lengths) / (share * gamma):,.1f} batches"
        )


def _usable(config: Config, source: str, tokenizer: PreTrainedTokenizerBase) -> _Usable:
    """The rows of one source. Raises ConfigError if none is usable."""
    settings, limit = config.of(source), config.rollout.max_prompt_tokens
    dataset = load_dataset(settings.data, gold_test(settings.reward))
    lengths = list(_lengths(config.model, tokenizer, dataset, settings.data))
    usable = [n for n in lengths if n <= limit]
    left_out = [f"left out: {row.location}: {row.reason}" for row in dataset.rejected]
    known = known_leaks(config, dataset.rows)
    leaks = [f"training row {x.location} equals {x.known}" for x in known]
    of = f"{source}: " if source else ""
    findings = [
        *(ok("layout", f"{of}{layout}") for layout in dataset.layouts),
        *_some(left_out, "rows are left out"),
        *_some(leaks, "training rows equal benchmark problems; Pass@K on these measures memory"),
    ]
    if again := len(dataset) - len({(row.problem, str(row.messages)) for row in dataset.rows}):
        says = (
            f"{plural(again, 'row')} of {len(dataset)} have the problem of an earlier one: each is a prompt"
        )
        findings.append(Finding("warn", "data", says))
    if too_long := len(lengths) - len(usable):
        longer = f"left out: {plural(too_long, 'prompt')} longer than rollout.max_prompt_tokens = {limit}"
        findings.append(Finding("warn", "data", longer))
    if not usable and source:
        raise ConfigError(f"data.sources.{source}: none of its rows can be used")
    return _Usable(source, usable, findings)


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
    yield from (Finding("warn", "data", line) for line in (*lines[:SHOWN], *more))
