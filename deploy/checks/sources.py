"""Training rows of each data source, the composition of a batch, and the rendering of prompts: the chat
template with its settings, thoughts that it asks for, and control tokens in the texts of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hora_rl.actors.data.datasets import Dataset, load_dataset, usable_held_out
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.common.answer_format import prefill, unclosed
from hora_rl.common.config import Config, DataConfig, ModelConfig
from hora_rl.common.data.chat_template import settings_of, template_of
from hora_rl.common.data.prompt_order import Mixture, counts_of, mixed_rows
from hora_rl.common.data.prompts import (
    begin_tokens,
    load_tokenizer,
    opening,
    prompt_of,
    refuse_unknown,
    render,
    render_text,
)
from hora_rl.common.data.rows import Row
from hora_rl.common.data.special_tokens import PlainTexts
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
ROWS = 64
"""Rows whose texts are searched for control tokens."""
SWITCHES = ("enable_thinking", "thinking")
"""Names under which templates turn thoughts on and off."""


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
    leaks = [f"training row {row} equals {known}" for row, known in known_leaks(config, dataset.rows)]
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
    more = [f"{len(lines)} {summary}"] * (len(lines) > SHOWN)
    yield from (warn("data", line) for line in (*lines[:SHOWN], *more))


def templates(target: Target) -> Iterator[Finding]:
    """The rendering of each source, or of the held-out problems if nothing is trained."""
    config = target.config
    for source in config.source_names if target.trains else [config.evaluated_source]:
        findings = rendering(config.of(source), trains=target.trains)
        yield from (replace(f, says=f"{source}: {f.says}") for f in findings) if source else findings


def rendering(config: Config, *, trains: bool) -> Iterator[Finding]:
    data = config.data
    tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
    if trains:
        rows = load_dataset(data.model_copy(update={"limit": ROWS}), gold_test(config.reward)).rows
    else:
        rows = usable_held_out(config).rows[:ROWS] if config.evaluation.path else ()
    if not rows:
        return
    if data.chat:
        yield _template(tokenizer, rows[0], data)
        yield from _left_out(tokenizer, rows, data)
    yield from _texts(tokenizer, rows, data)


def _template(tokenizer: PreTrainedTokenizerBase, row: Row, data: DataConfig) -> Finding:
    """Whose template it is, its settings, and whether it asks for a thought."""
    settings = [f"{name}: {value!r:.60}" for name, value in data.chat_template_kwargs.items()]
    left = [n for n in settings_of(template_of(tokenizer, data)) if n not in data.chat_template_kwargs]
    whose = "data.chat_template" if data.chat_template else "the tokenizer's"
    parts = [f"{whose}, with {', '.join(settings) if settings else 'its defaults'}"]
    if left:
        parts.append(f"it also reads {', '.join(left)}")
    text, begins = render_text(tokenizer, row.problem, data, row.messages), begin_tokens(tokenizer)[:1]
    if begins and render(tokenizer, row.problem, data, row.messages)[:1].tolist() != begins:
        begin = tokenizer.convert_ids_to_tokens(begins[0])
        parts.append(f"it writes no begin token ({begin}), which the tokenizer puts before other texts")
    for switch in (name for name in SWITCHES if name in left):
        off, on = (
            render_text(
                tokenizer,
                row.problem,
                data.model_copy(update={"chat_template_kwargs": data.chat_template_kwargs | {switch: value}}),
                row.messages,
            )
            for value in (False, True)
        )
        if text != off:
            remedy = f"data.chat_template_kwargs: {{{switch}: false}} turns thoughts off"
            parts.append(f"it thinks by default: {remedy}")
        elif text != on:
            parts.append(f"it does not think by default: {switch}: true turns thoughts on")
    if opened := prefill(text):
        parts.append(f"the prompt ends in an {'open' if unclosed(opened) else 'empty'} thought ({opened!r})")
    return ok("chat template", "; ".join(parts))


def _left_out(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], data: DataConfig) -> Iterator[Finding]:
    """The first message that the template does not write. It may change an assistant's or a tool's."""
    plain = PlainTexts(tokenizer, data)
    for row in rows:
        text = render_text(tokenizer, row.problem, data, row.messages)
        for message in opening(row.problem, data, row.messages):
            role, content = message["role"], str(message["content"]).strip()
            written = content in text or plain(content) in text
            if role not in ("assistant", "tool") and not written:
                says = f"{row.location}: the chat template leaves out its {role} message ({content!r:.60})"
                yield warn("prompt", says, "use a role that the template knows, or another template")
                return


def _texts(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], data: DataConfig) -> Iterator[Finding]:
    """Rows that are rendered already, that hold control tokens, or that replace `data.system`."""
    plain, of = PlainTexts(tokenizer, data), f"of the first {len(rows)}"
    starts = [not row.messages and plain.starts(row.problem) for row in rows]
    if any(starts) and data.chat:
        row = rows[starts.index(True)]
        says = f"{row.location} begins with a control token and gets the chat template once more"
        yield warn("prompt", says, "set data.chat: false for rows that are rendered already")
    elif any(starts):
        count = plural(sum(starts), "row")
        yield ok("prompt", f"{count} {of} are rendered already: control tokens count")
    for row, begins in zip(rows, starts, strict=True):
        if not begins and plain.holds(f"{row.problem}{row.messages}"):
            yield ok("prompt", f"{row.location} holds the text of a control token: a space breaks it")
            break
    roles = [{message["role"] for message in row.messages} for row in rows]
    replaced = sum(bool(each & {"system", "developer"}) for each in roles) + (0 if data.chat else sum(starts))
    if replaced and data.system is not None:
        says = (
            f"{plural(replaced, 'row')} {of} have a system message, or are rendered already: that takes the "
            f"place of data.system ({data.system!r:.60})"
        )
        fix = "set data.system: null if they ask for the form of the rewards; or reward.answer: lenient"
        yield warn("prompt", says, fix)
