"""YAML files as plain values."""

import json
from pathlib import Path
from typing import Any

import yaml

from hora_rl.common.errors import ConfigError
from hora_rl.common.files import check_regular


class OnceEach(yaml.SafeLoader):
    """Refuses duplicate keys. Plain YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def text_override(key: str, text: str) -> str:
    """An override of `key` with a text, whatever that is as YAML: `1000`, or a name with ` #` in it."""
    return f"{key}={json.dumps(text, ensure_ascii=False)}"


def read_yaml(path: Path, source: str) -> Any:
    """The content of `path`; `source` is the user's name for it. Raises ConfigError and FileNotFoundError."""
    check_regular(path)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=OnceEach)
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: not YAML that can be read: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # a number of 5,000 digits
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
