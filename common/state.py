"""The state of a run that actors and learner share through Redis."""

from __future__ import annotations

import json

from pydantic import ValidationError

from common.config import Config
from common.errors import RunError


def read_config(text: bytes | None, run: str) -> Config:
    """The configuration that the run's coordinator wrote. Raises RunError for none, or one of another version."""
    if text is None:
        raise RunError(f"this Redis knows no run {run!r}: check run.name and queue.url, or start it first")
    try:
        return Config.model_validate(json.loads(text))
    except (ValidationError, ValueError):
        raise RunError(
            f"run {run!r} is served by another version of hora, whose configuration this one does not understand: "
            "use the same version for all parts"
        ) from None
