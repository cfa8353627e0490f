"""The study's design: claims and sizes that were committed before its first score."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import yaml


class Design(SimpleNamespace):
    """The values of `design.yaml`, where each has its meaning."""

    def but(self, **changes: object) -> Design:
        return Design(**{**vars(self), **changes})


def load() -> Design:
    return Design(**yaml.safe_load(Path(__file__).with_name("design.yaml").read_text()))
