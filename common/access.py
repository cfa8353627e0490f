"""Access control by the run's token. The run's state holds only a digest of it."""

import hashlib
import hmac
import os


def wanted_digest(stored: str | None) -> str:
    """SHA-256 (hex) of the required token: HORA_TOKEN's if set, else `stored`. Empty refuses all requests."""
    token = os.environ.get("HORA_TOKEN")
    return sha256(token) if token else (stored or "")


def carries(authorization: str | None, wanted: str) -> bool:
    """Whether an Authorization header holds the token with digest `wanted`."""
    scheme, _, token = (authorization or "").partition(" ")
    return bool(
        wanted and token and scheme.lower() == "bearer" and hmac.compare_digest(sha256(token), wanted)
    )


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
