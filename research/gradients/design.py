"""The study's design: claims and sizes that were committed before its first score; or the sizes for a user's
model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import yaml

FILE = "design.yaml"


class Design(SimpleNamespace):
    """The values of `design.yaml`, where each has its meaning."""

    def but(self, **changes: object) -> Design:
        return Design(**{**vars(self), **changes})

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(yaml.safe_dump(vars(self), sort_keys=False))


def load(folder: Path | None = None) -> Design:
    """The design in `folder`, else the study's."""
    path = folder / FILE if folder and (folder / FILE).exists() else Path(__file__).with_name(FILE)
    return Design(**yaml.safe_load(path.read_text()))
