"""Handles of deployments without Serve."""

import inspect
from collections.abc import Callable
from typing import Any


class Handle:
    """Answers a call with `answer` of its arguments, and keeps those of the last one as `asked`."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer, self.asked = answer, tuple[Any, ...]()

    def options(self, **_: object) -> Any:
        return self

    async def remote(self, *arguments: Any) -> Any:
        self.asked = arguments
        found = self._answer(*arguments)
        return await found if inspect.isawaitable(found) else found
