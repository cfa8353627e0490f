"""The study's sizes, read from the design that was committed before its first score."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_name("design.yaml")


@dataclass(frozen=True, slots=True)
class Design:
    """Numbers of `design.yaml`, where each has its meaning."""

    model: str
    seed: int
    candidates: int
    samples: int
    max_tokens: int
    min_hits: int
    prompts: int
    hits: int
    misses: int
    width: int
    exact: int
    group_size: int
    pre_rollouts: int
    rounds: int
    batches: int
    rarer: int


def load(path: Path = FILE) -> Design:
    """The design of that file. KeyError for a number it lacks."""
    values: dict[str, Any] = yaml.safe_load(path.read_text())
    return Design(**{field.name: values[field.name] for field in fields(Design)})
