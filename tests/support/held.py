"""Which rollouts a run still holds in Redis."""

from typing import Any

from hora_rl.common.live.keys import Keys


def rollouts_held(client: Any, run: str) -> set[str]:
    """The names, without the run's prefix, of all keys that hold rollouts."""
    keys = Keys(run)
    patterns = [keys.pre_rollouts("*"), keys.additional("*"), keys.drawn("*", 0).removesuffix("0") + "*"]
    found = [k.decode() for p in patterns for k in client.scan_iter(p.replace("{", "\\{"))]
    return {key.removeprefix(f"hora:{{{run}}}:") for key in found}
