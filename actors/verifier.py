"""A verifier replica: scores completions in worker processes that a hostile answer can kill and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve import metrics

from actors.verifier_pool import Item, VerifierPool, VerifierUnavailable
from common.config import Config

FAULTS_IN_A_ROW = 3
"""So many pool failures without a scored batch between them make a replica unhealthy; Serve then replaces it."""


class Verifier:
    """Serve deployment `verifier`. `config` is a dumped `Config`."""

    def __init__(self, config: dict[str, Any]) -> None:
        checked = Config.model_validate(config)
        self._pool = VerifierPool(checked.reward, checked.verifier.processes)
        self._faults = 0
        self._scored = metrics.Counter("hora_verifier_scored", description="Completions scored.")
        self._killed = metrics.Counter("hora_verifier_killed", description="Answers that cost their process.")
        self._seen_killed = 0

    async def score(self, items: Sequence[Item]) -> list[dict[str, float]]:
        """Rewards by name of each (problem, completion, gold answer), in the order of `items`.

        Raises VerifierUnavailable when no answer was judged (ask again) and ValueError when a user's reward fails.
        """
        try:
            scored = await self._pool.score_batch(items)
        except VerifierUnavailable:
            self._faults += 1
            raise
        self._faults = 0
        if items:
            self._count(len(items))
        return scored

    async def stats(self) -> dict[str, int]:
        """Counters of this replica since its start."""
        return self._pool.stats()

    async def check_health(self) -> None:
        """Never waits behind answers: a replica busy with hostile ones is healthy."""
        if self._faults >= FAULTS_IN_A_ROW:
            raise RuntimeError(f"the process pool failed {self._faults} times in a row")

    def __del__(self) -> None:
        if hasattr(self, "_pool"):  # not there where the configuration was refused
            self._pool.close()

    def _count(self, scored: int) -> None:
        killed = self._pool.stats()["killed"]
        self._scored.inc(scored)
        if killed > self._seen_killed:
            self._killed.inc(killed - self._seen_killed)
        self._seen_killed = killed
