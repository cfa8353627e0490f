"""HORA's import name. In a checkout the packages are top-level folders: `common/` is `hora_rl.common`.

The library for other trainers needs only numpy: `allocate`, `Session`, `advantages`, `plan`. `configure`,
`run` and `results` train with the complete system from Python (`hora_rl.runs`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hora_rl.allocator import Session, allocate, plan
    from hora_rl.common.advantages import advantages
    from hora_rl.runs import Results, configure, results, run

__all__ = ["Results", "Session", "advantages", "allocate", "configure", "plan", "results", "run"]

_HOME = {
    "Session": "allocator",
    "allocate": "allocator",
    "plan": "allocator",
    "advantages": "common.advantages",
}


def __getattr__(name: str) -> Any:
    """Import lazily, because every module of the system imports this file first."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'runs')}"), name)
