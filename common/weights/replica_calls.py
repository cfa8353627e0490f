"""Calls to every running generator replica, through Serve."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict

import structlog

log = structlog.get_logger(__name__)
APP, DEPLOYMENT = "hora", "generator"
Ask = Callable[..., list[Any]]
"""A method of the replicas and its arguments -> their answers."""


class Confirmation(TypedDict):
    """A replica's answer to `confirm`: its version, checksum ("" for the initial policy), the seconds that
    generation was paused, and the checksum's part of them."""

    replica: str
    version: int
    checksum: str
    pause_s: float
    checksum_s: float


class BroadcastClient:
    """Calls every running replica, with a limit of `limit_s` seconds.

    Serve restarts a replica that fails. The new one pulls the newest version or receives a broadcast; the
    other replicas continue. `ask` makes the calls, by default `ask_replicas`."""

    def __init__(self, limit_s: float, ask: Ask | None = None) -> None:
        self._all = ask or partial(ask_replicas, limit_s)

    def roll_call(self) -> dict[str, int]:
        return {a["replica"]: a["version"] for a in self._all("roll_call")}

    def join(self, info: Mapping[str, object], members: tuple[str, ...], group: str) -> None:
        """Make the replicas `members` join the transfer group `group`, each with its index as rank. All other
        replicas leave their group."""
        self._all("join", info, members, group)

    def update(self, info: Mapping[str, object], version: int, group: str = "") -> None:
        """Make the replicas receive and load `version`; over `gloo` and `nccl` the members of `group`."""
        self._all("update", info, version, group)

    def confirm(self, version: int) -> list[Confirmation]:
        answers: list[Confirmation] = self._all("confirm", version)
        sums = {c["checksum"] for c in answers if c["version"] == version and c["checksum"]}
        if len(sums) > 1:
            log.error(
                "replicas of one version hold different weights", version=version, checksums=sorted(sums)
            )
        return answers

    def sleep(self, version: int) -> list[str]:
        """Make the replicas free their GPUs at version `version`; returns the names of those that did."""
        return self._all("sleep", version)


def ask_replicas(limit_s: float, method: str, *args: object) -> list[Any]:
    """The running replicas' answers to `method` within `limit_s` seconds; failures are logged."""
    import ray
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    if not ray.is_initialized():
        return []  # A learner without a cluster: replicas pull the announced file.
    try:
        handle = serve.get_deployment_handle(DEPLOYMENT, APP)
        results = handle.broadcast(method, *args).results(timeout_s=limit_s, return_exceptions=True)
    except (RayServeException, RayError, KeyError, TimeoutError) as error:  # KeyError: no application yet
        log.warning("broadcast failed", method=method, error=f"{type(error).__name__}: {error}")
        return []
    for failed in (r for r in results if isinstance(r, BaseException)):
        reason = str(failed).strip().splitlines()[-1:]
        log.warning("a replica failed an update", method=method, error=reason)
    return [r for r in results if not isinstance(r, BaseException)]
