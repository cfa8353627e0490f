"""Logs: one line per event on standard error, as text or JSON, with the run's id and, if bound, shard and
group.

    logs.configure("json", run="qwen7b", part="coordinator/x1")     once per process
    with logs.bound(shard="12:3"): ...                              all log lines of this task in the block"""

import sys
from contextlib import AbstractContextManager
from typing import Literal

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import Processor


def configure(form: Literal["text", "json"], run: str, **always: str) -> None:
    """Set up this process. Every line has `run` and `always` (part=..., rank=...).

    They are not context variables, which threads and other tasks would not inherit."""
    structlog.configure(
        processors=[
            lambda _logger, _method, event: {"run": run, **always, **event},
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
    """Add `values` to all log lines of the current task in the block, e.g. shard="12:3", group="0:417"."""
    return structlog.contextvars.bound_contextvars(**values)


def _render(form: Literal["text", "json"]) -> list[Processor]:
    # No local variables in traces: they hold batches of tokens, and passwords in URLs.
    if form == "json":
        traces = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
        return [traces, structlog.processors.JSONRenderer(default=str)]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
