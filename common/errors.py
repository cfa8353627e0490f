"""Errors for the user: one line that names the thing, the place and the remedy, of three kinds. The reason in
a Python traceback, as one line."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONGEST = 500
DIED = "ActorDiedError()"
"""All that Serve says of a replica whose process ended."""
_LINK = re.compile(
    r"^(?:The above exception was the direct cause of|During handling of the above exception, another).*:$",
    re.MULTILINE,
)
_FRAME = re.compile(r'^  File ".*$', re.MULTILINE)
_ERROR = re.compile(r"^([A-Za-z_][\w.]*)(?:: |:?$)", re.MULTILINE)
_OWN = "hora_rl."
_INVALID = re.compile(r"\d+ validation errors? for (.+)\n")
_INPUT = re.compile(r" \[type=\w+, input_value=.*\n?(?: +For further information.*\n?)?")


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
    """An environment failed, hung, changed the history or returned no success: the episode is sampled again,
    five times at most. The text begins with a verb."""

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


def root_cause(text: str) -> str:
    """The reason in `text`, which ends with a traceback: the first and the last error of a chain, or one of
    HORA's own in it, which names the remedy. Without a traceback the last line."""
    text = re.sub(r"^ *\| ", "", text.strip(), flags=re.MULTILINE)  # the margin of an exception group
    errors = [_error(section.strip()) for section in _LINK.split(text)]
    for kind, message in reversed(errors):
        if kind.startswith(_OWN):
            return message
    return "; then ".join(dict.fromkeys(_named(*error) for error in (errors[0], errors[-1])))


def _error(section: str) -> tuple[str, str]:
    """Type and message of the error of one traceback."""
    if section.endswith(DIED):
        return "", "its process ended without a word, as one does that is killed for its memory or crashes"
    frames = list(_FRAME.finditer(section))
    match = _ERROR.search(section, frames[-1].end()) if frames else None
    if match is None:
        return "", section.rpartition("\n")[2].strip()
    message = section[match.end() :].strip()
    if message.startswith(_OWN):  # as Ray repeats an error of another process
        kind, _, message = message.partition(": ")
        return kind, one_line(message, LONGEST)
    return match.group(1), one_line(_plain(message), LONGEST)


def _plain(message: str) -> str:
    """A message of pydantic without its input and links: `ModelConfig: dtype: Input should be …`."""
    if (match := _INVALID.match(message)) is None:
        return message
    faults = []
    for fault in _INPUT.split(message[match.end() :]):
        field, _, reason = ("", "", fault) if fault.startswith("  ") else fault.partition("\n")
        reason = re.sub(r"^\s*(?:Value error|Assertion failed), ", "", reason).strip()
        faults.append(f"{field}: {reason}" if field else reason)
    return f"{match.group(1)}: {'; '.join(filter(None, faults))}"


def _named(kind: str, message: str) -> str:
    """The message with the type of its error, which alone may tell what `'rope'` means."""
    name = kind.rpartition(".")[2]
    return message if name in ("", "ValidationError") else f"{name}: {message}" if message else name
