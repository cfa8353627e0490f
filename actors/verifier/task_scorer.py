"""The reward `accuracy` for rows of `reasoning-gym`: the task's scorer judges the answer in a sandbox.

An answer is wrong if the scorer fails or exceeds a limit. After a failure of the sandbox the caller retries
(`VerifierUnavailable`).
"""

import json
import logging
import math
import pickle
import secrets
from functools import partial
from typing import Any

from hora_rl.actors.verifier.code.runner import TRIES, ended
from hora_rl.actors.verifier.sandbox.pool import SandboxPool
from hora_rl.actors.verifier.sandbox.sandbox import Limits, Sandbox
from hora_rl.common.data.gym import PINNED, TASK, packages
from hora_rl.common.data.rewards import Answer
from hora_rl.common.errors import ConfigError

SCORER = f"{__package__}.task_scorer_process"
MEMORY = 2 << 30
"""Address space of a scorer in bytes, of which the library takes 0.2 GiB."""

_log = logging.getLogger(__name__)


class ScorerPool(SandboxPool[Sandbox]):
    """Scores up to `processes` answers at a time. Use from one event loop; `close()` ends the pool."""

    def __init__(self, processes: int) -> None:
        super().__init__(_box, processes)

    async def score(self, answer: Answer, text: str, seconds: float) -> float:
        """The score of `text`, the answer of a completion, within `seconds` of processor time. Raises
        SandboxError if this machine has no sandbox, and VerifierUnavailable."""
        key = answer.row, text, seconds
        return await self.verdicts.of(key, partial(self._score, answer, text, seconds))

    async def _score(self, answer: Answer, text: str, seconds: float) -> float:
        entry = {name: value for name, value in answer.row.items() if name != TASK}
        task: dict[str, Any] = {**answer.row[TASK], "entry": entry, "answer": text}
        score, why = await self.use(lambda box: _ask(box, task, seconds))
        if why:
            _log.warning("the scorer of %s: %s, counted as wrong (%s)", task["task"], why, answer.place)
        return score


def _box() -> Sandbox:
    folder = packages()
    if folder is None:
        raise ConfigError(f"reasoning-gym is not installed: run `make setup`, or pip install {PINNED}")
    return Sandbox([SCORER], packages=folder)


def _ask(box: Sandbox, task: dict[str, Any], seconds: float) -> tuple[float, str]:
    """The score, and the reason if the scorer failed (then the score is 0)."""
    nonce = secrets.token_hex(8)
    message = pickle.dumps({**task, "nonce": nonce})
    limits = Limits(seconds=seconds, memory=MEMORY, output=1 << 16)
    outcome = box.run(f"from {SCORER} import main; main()", message, limits, TRIES)
    try:
        reply, score = json.loads(outcome.out) if outcome.kind == "ok" else ("", 0.0)
    except (TypeError, ValueError):
        reply, score = "", 0.0
    if reply != nonce or not isinstance(score, float) or not math.isfinite(score):
        return 0.0, ended(outcome)
    return min(1.0, max(0.0, score)), ""  # a sum of parts may round to slightly more than 1
