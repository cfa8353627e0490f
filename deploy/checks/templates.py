"""Check of the prompts' rendering: the chat template with its settings, thoughts that it asks for, and
control tokens in the texts of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hora_rl.actors.data.datasets import load_dataset, usable_held_out
from hora_rl.actors.data.gold_answers import gold_test
from hora_rl.common.answer_format import prefill, unclosed
from hora_rl.common.config import Config, DataConfig
from hora_rl.common.data.chat_template import settings_of, template_of
from hora_rl.common.data.control_tokens import PlainTexts
from hora_rl.common.data.prompts import (
    begin_tokens,
    load_tokenizer,
    opening,
    render,
    render_text,
)
from hora_rl.common.data.rows import Row
from hora_rl.deploy.checks.findings import Finding, Target, ok, plural, warn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROWS = 64
"""Rows whose texts are searched for control tokens."""
SWITCHES = ("enable_thinking", "thinking")
"""Names under which templates turn thoughts on and off."""


def templates(target: Target) -> Iterator[Finding]:
    """The rendering of each source, or of the held-out problems if nothing is trained."""
    config = target.config
    for source in config.source_names if target.trains else [config.evaluated_source]:
        findings = rendering(config.of(source), trains=target.trains)
        yield from (replace(f, says=f"{source}: {f.says}") for f in findings) if source else findings


def rendering(config: Config, *, trains: bool) -> Iterator[Finding]:
    """Findings of one source."""
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
