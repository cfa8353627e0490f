"""Calls to every running generator replica, through Serve."""

from __future__ import annotations

import uuid
from typing import Any

import structlog

from common.config import Config

log = structlog.get_logger(__name__)
APP, DEPLOYMENT = "hora", "generator"


class BroadcastClient:
    """vLLM's weight-sync client over Serve: each call goes to every running replica and has a deadline.

    A replica that fails is restarted by Serve and pulls the newest version, or is sent it; the others go on.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._limit = config.weights.update_limit_s
        self.version = 0
        self.members: tuple[str, ...] = ()
        self._group = ""  # the name of the transfer group of these members
        self.confirmed: list[dict[str, Any]] = []

    def roll_call(self) -> dict[str, int]:
        """The replicas that are fit and reached now, each with the version that it holds."""
        return {answer["replica"]: answer["version"] for answer in self._all("answer_roll_call")}

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """vLLM ships one payload with rank offset 1; each of `members` finds its own place in their order."""
        self._group = uuid.uuid4().hex
        self._all("init_weight_transfer_engine", init_info, self.members, self._group)

    def start_weight_update(self) -> None:
        """A replica opens its model when the weights come, not before: nothing to say yet."""

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Whoever takes part receives, loads and goes on by itself: nothing more must come from here."""
        self._all("update_weights", update_info, self.version, self._group)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.confirmed = self._all("finish_weight_update", weight_version or str(self.version))
        sums = {c["checksum"] for c in self.confirmed if c["version"] == self.version and c["checksum"]}
        if len(sums) > 1:
            log.error(
                "replicas of one version hold different weights", version=self.version, checksums=sorted(sums)
            )

    def _all(self, method: str, *args: Any) -> list[Any]:
        import ray
        from ray import serve
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        if not ray.is_initialized():
            return []  # A learner without a cluster: replicas pull the announced file.
        try:
            handle = serve.get_deployment_handle(DEPLOYMENT, APP)
            results = handle.broadcast(method, *args).results(timeout_s=self._limit, return_exceptions=True)
        except (RayServeException, RayError, KeyError, TimeoutError) as error:  # KeyError: no application yet
            log.warning("broadcast failed", method=method, error=f"{type(error).__name__}: {error}")
            return []
        for failed in (r for r in results if isinstance(r, BaseException)):
            reason = str(failed).strip().splitlines()[-1:]
            log.warning("a replica failed an update", method=method, error=reason)
        return [r for r in results if not isinstance(r, BaseException)]
