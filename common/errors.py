"""Errors for the user: one line that names the thing, the place and the remedy. Three kinds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class HoraError(Exception):
    """Something the user can fix. Only `str(error)` is shown."""


class ConfigError(HoraError, ValueError):
    """The configuration, or a file it names, is invalid."""


class WireError(HoraError, ValueError):
    """A message that does not decode or validate; it becomes a dead letter."""


class StaleWeights(RuntimeError):
    """A replica's weights are older than the request needs. Nothing failed; retry."""


class DamagedWeights(StaleWeights):
    """A published file differs from its manifest. Replicas keep their weights until it is published again."""


class RunError(HoraError, RuntimeError):
    """The run cannot start or continue: a server is unreachable, memory is short, a part gave up."""


class MissingWeights(RunError):
    """Replicas lack a version, and no learner runs that sends it."""


class Unavailable(Exception):
    """Raise this from a reward whose service is down. The run retries for up to ten minutes."""


class AwayTooLong(RuntimeError):
    """A reward raised Unavailable for ten minutes; retrying would wait as long again."""


class VerifierUnavailable(RuntimeError):
    """The verifier failed and judged no answer. Retry."""


class UnhealthyError(RuntimeError):
    """A replica can no longer complete requests and must be replaced."""


class EnvironmentFault(Exception):
    """An environment failed, hung, changed the history or returned no success. The episode is sampled again;
    after five tries the run stops. The text begins with a verb."""

    @property
    def kind(self) -> str:
        """The verb, by which lost episodes are counted."""
        return str(self).partition(" ")[0]


class NoRoom(RuntimeError):
    """A replica is full. Nothing failed; the request waits for a place."""


def one_line(text: object, limit: int = 300) -> str:
    """`text` without line breaks, at most `limit` characters of it."""
    return " ".join(str(text).split())[:limit]


@contextmanager
def any_error_as(
    make: Callable[[str], Exception], but: type[Exception] | tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Raise every error of the block, except those of type `but`, as `make("Type: text")`.

    For user functions, and for libraries that raise plain Exception. Elsewhere catch specific types."""
    try:
        yield
    except but:
        raise
    except Exception as error:
        raise make(f"{type(error).__name__}: {error}") from error


UNREACHED = "the learner is not reached"
"""Prefix of the error of a replica that could not join the learner's group. vLLM passes on only the text."""
