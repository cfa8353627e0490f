"""HORA's own import name: `hora_rl.common`, `hora_rl.allocator`, … wherever HORA is installed.

A checkout keeps its folders at the top (`common/`, `deploy/`, …). An installed wheel has them in this
package, so a project keeps a `common/` of its own. Both names lead to one module (`hora_rl.names`).

The library for any trainer needs numpy alone: `allocate`, `Session`, `advantages`, `plan`. `configure`, `run`
and `results` are a run of the whole system from Python (`hora_rl.runs`).
"""

from typing import TYPE_CHECKING, Any

from hora_rl import names as _names

if TYPE_CHECKING:
    from allocator import Session, allocate, plan
    from common.advantages import advantages
    from hora_rl.runs import Results, configure, results, run

__all__ = ["Results", "Session", "advantages", "allocate", "configure", "plan", "results", "run"]

_names.install()


def __getattr__(name: str) -> Any:
    """Load the functions when they are asked for: every Python process of a wheel's environment imports this
    file."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("Session", "allocate", "plan"):
        import allocator

        return getattr(allocator, name)
    if name == "advantages":
        from common.advantages import advantages

        return advantages
    from hora_rl import runs

    return getattr(runs, name)
