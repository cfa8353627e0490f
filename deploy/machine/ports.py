"""TCP ports of this machine."""

import random
import socket
from contextlib import suppress

from hora_rl.common.config import TelemetryConfig
from hora_rl.common.errors import RunError

# Above the ports of Ray's workers and below Linux's ephemeral range, which Ray's daemons use heavily: a free
# ephemeral port may be taken before Serve binds it.
CANDIDATES = range(20_000, 32_768)


def check_port(host: str, port: int) -> None:
    """Raise RunError if `port` cannot be bound on `host`."""
    try:
        _bind(host, port)
    except OSError as error:
        raise RunError(
            f"telemetry.http_port: {host}:{port} cannot be used ({error.strerror}); choose another with "
            "-s telemetry.http_port=N, or 0 for any free one"
        ) from None


def port_of(telemetry: TelemetryConfig) -> int:
    """The configured HTTP port, or a free one for 0."""
    return telemetry.http_port or free_port(telemetry.http_host)


def free_port(host: str = "127.0.0.1") -> int:
    """A free port on `host` outside the ephemeral range."""
    for port in random.sample(CANDIDATES, 100):
        with suppress(OSError):
            _bind(host, port)
            return port
    raise RunError(
        f"telemetry.http_host: no port of {host} from {CANDIDATES[0]} to {CANDIDATES[-1]} can be used"
    )


def _bind(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Serve does
        probe.bind((host, port))
