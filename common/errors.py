"""Errors that reach a person: one line that names the thing, the place and the remedy. Three kinds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class HoraError(Exception):
    """Something the user can fix. `str(error)` is all that is shown."""


class ConfigError(HoraError, ValueError):
    """The configuration, or a file it names, cannot be used."""


class WireError(HoraError, ValueError):
    """A message that does not decode or validate; it becomes a dead letter."""


class StaleWeights(RuntimeError):
    """A replica does not hold weights as new as the request needs. No part failed; another try may find
    them."""


class DamagedWeights(StaleWeights):
    """A published file differs from its announcement. A replica serves its older weights until the learner
    publishes again."""


class RunError(HoraError, RuntimeError):
    """The run cannot start or continue: a server is away, memory is short, a part gave up."""


class Unavailable(Exception):
    """Raise it from a reward whose service is away: the run waits and asks again, up to
    `reward.wait_limit_s`."""


class AwayTooLong(RuntimeError):
    """A reward raised Unavailable for the whole of `reward.wait_limit_s`. Asking again would wait as long
    once more."""


class UnhealthyError(RuntimeError):
    """A replica cannot complete its requests any more and must be replaced."""


class EnvironmentFault(Exception):
    """An environment did what an episode cannot be made of: it failed, hung, changed the history, or gave no
    success. The episode is sampled again, and after `environment.attempts` tries the run stops. The text
    begins with what it does, a verb."""

    @property
    def kind(self) -> str:
        """The verb: what lost episodes are counted by."""
        return str(self).partition(" ")[0]


class NoRoom(RuntimeError):
    """A replica is full. No part failed; the request waits for a place."""


class PinLost(RuntimeError):
    """The replica that answers is not kept at the version that an evaluation counts on."""


@contextmanager
def any_error_as(
    make: Callable[[str], Exception], but: type[Exception] | tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Raise every error of the block, except those of type `but`, as `make("Type: text")`.

    For a user's own function, and for libraries that raise plain Exception. Elsewhere name the types.
    """
    try:
        yield
    except but:
        raise
    except Exception as error:
        raise make(f"{type(error).__name__}: {error}") from error


UNREACHED = "the learner is not reached"
"""Begins the error of a replica that could not join the learner's group. vLLM's processes pass on only the
text, not the type."""
