"""Input and result of a check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hora_rl.common.config import Config, ModelConfig
from hora_rl.common.errors import ConfigError
from hora_rl.common.model.model_files import own_configuration

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class Target:
    """A configuration and the command to check it for: `run` and `eval` on this machine, `train` on a Ray
    cluster, `elsewhere` on machines that are not at hand. `http` is the (host, port) of a Serve file.
    `chosen` describes the values that `run.resources: auto` chose."""

    config: Config
    command: Literal["run", "train", "eval", "elsewhere"] = "run"
    http: tuple[str, int] | None = None
    chosen: str = ""

    @property
    def on_cluster(self) -> bool:
        return self.command in ("train", "elsewhere")

    @property
    def trains(self) -> bool:
        return self.command != "eval"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `fix` is the remedy; empty if `level` is ok or `says` contains the remedy."""

    level: Literal["ok", "warn", "fail"]
    what: str
    says: str
    fix: str = ""

    @property
    def line(self) -> str:
        return f"{self.what}: {self.says}; {self.fix}" if self.fix else self.says


Check = Callable[[Target], Iterator[Finding]]
"""Examines one subject and changes nothing. A raised HoraError counts as a failed finding."""


def ok(what: str, says: str) -> Finding:
    return Finding("ok", what, says)


def warn(what: str, says: str, fix: str = "") -> Finding:
    return Finding("warn", what, says, fix)


def must(good: bool, what: str, says: str, fix: str) -> Finding:
    """A failure with its remedy unless `good`."""
    return ok(what, says) if good else Finding("fail", what, says, fix)


def should(good: bool, what: str, says: str, fix: str) -> Finding:
    """A warning with its remedy unless `good`."""
    return ok(what, says) if good else warn(what, says, fix)


def configuration_of(model: ModelConfig) -> PreTrainedConfig | None:
    """The model's configuration; None if it cannot be read, which is reported when the model is loaded.
    Raises ConfigError for one that HORA refuses."""
    try:
        return own_configuration(model)
    except ConfigError:
        raise
    except (OSError, ValueError):
        return None


def plural(count: int, noun: str) -> str:
    """`1 prompt`, `2 prompts`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(gib: float) -> str:
    """`12 MiB`, `1.5 GiB`, `221 GiB`; at least 1 MiB."""
    if gib < 1:
        return f"{max(1, gib * 1024):.0f} MiB"
    return f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB"
