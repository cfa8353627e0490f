"""Logs: one line per event on standard error, as text or JSON, with the run id on each and shard and group id
where they apply.

    logs.configure("json", run="qwen7b", part="coordinator/x1")     once per process
    with logs.bound(shard="12:3"): ...                            everything logged inside, in this task alone
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Literal

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, Processor


def configure(form: Literal["text", "json"], run: str, **always: str) -> None:
    """Set up this process. `run` and `always` (part=..., rank=...) stand on every line it writes.

    They are no context variables: those would be lost in threads and in tasks that others start.
    """
    structlog.configure(
        processors=[
            _constant(run=run, **always),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_render(form),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def bound(**values: object) -> AbstractContextManager[None]:
    """Everything that the current task logs inside the block carries `values`, e.g. shard="12:3",
    group="0:417"."""
    return structlog.contextvars.bound_contextvars(**values)


def _constant(**values: str) -> Processor:
    def add(_logger: object, _method: str, event: EventDict) -> EventDict:
        return {**values, **event}

    return add


def _render(form: Literal["text", "json"]) -> list[Processor]:
    # Traces without local variables: those hold whole batches of tokens, and passwords in addresses.
    if form == "json":
        traces = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
        return [traces, structlog.processors.JSONRenderer(default=str)]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
