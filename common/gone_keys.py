"""Keys of earlier versions of the configuration (`data/gone_keys.yaml`)."""

import copy
from collections.abc import Mapping
from pathlib import Path

import yaml

from hora_rl.common.errors import ConfigError

TABLE = Path(__file__).with_name("data") / "gone_keys.yaml"
GONE: dict[str, list[object]] = yaml.safe_load(TABLE.read_text("utf-8"))
"""Of each key what holds now, and the values that say the same."""


def without_gone(args: Mapping[str, object], source: str = "arguments") -> dict[str, object]:
    """`args` without the keys of earlier versions whose value says what holds now, as in the config.yaml of
    an older run. Raises ConfigError with one line per other value."""
    kept = copy.deepcopy(dict(args))
    data = kept.get("data")
    sources = data.get("sources") if isinstance(data, dict) else None
    of_sources = [f"data.sources.{name}." for name in sources] if isinstance(sources, dict) else []
    refused = []
    for key, (now, *same) in GONE.items():
        for prefix in ("", *(of_sources if key.startswith("reward.") else ())):
            *path, last = f"{prefix}{key}".split(".")
            section: object = kept
            for name in path:
                section = section.get(name) if isinstance(section, dict) else None
            if not isinstance(section, dict) or last not in section:
                continue
            value = section.pop(last)
            if not any(_same(value, other) for other in same):
                refused.append(f"{source}: {prefix}{key}: this key is gone: {now}; remove it")
    if refused:
        raise ConfigError("\n".join(refused))
    return kept


def _same(value: object, other: object) -> bool:
    """Whether `value` is `other`, or a section with no key that differs from it."""
    if isinstance(value, dict) and isinstance(other, dict):
        return all(key in other and other[key] == item for key, item in value.items())
    return value == other
