"""The study's design: claims and sizes that were committed before its first score; or the sizes for your own
model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import yaml


class Design(SimpleNamespace):
    """The values of `design.yaml`, where each has its meaning."""

    def but(self, **changes: object) -> Design:
        return Design(**{**vars(self), **changes})


OWN = "design.yaml"


def load(folder: Path | None = None) -> Design:
    """The design that `folder` has of its own, else the study's."""
    own = folder / OWN if folder else None
    path = own if own and own.exists() else Path(__file__).with_name("design.yaml")
    return Design(**yaml.safe_load(path.read_text()))


def save_own(folder: Path, design: Design) -> None:
    """Write the design of a bank of one's own; its sizes may be edited."""
    (folder / OWN).write_text(yaml.safe_dump(vars(design), sort_keys=False))
