"""docs/reference/configuration.md from the models themselves: `python -m deploy.configuration_docs >
docs/reference/configuration.md`."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticUndefined

from common.config import Config
from common.config.base import section_of

HEAD = """# Configuration

One YAML file per experiment feeds `serve deploy` (as application arguments), the learner and the one-machine
run. `hora check FILE` validates it; any value is changed on the command line with `-s section.key=value`.
Unknown keys and impossible values are refused with the key and the reason. Γ is `rollout.prompts_per_batch`,
G `rollout.group_size`, G0 `rollout.pre_rollouts`. Generated from `common/config/`.
"""


def document() -> str:
    """The page, section by section in the order of the models."""
    return HEAD + "".join(_section(name, field.annotation) for name, field in Config.model_fields.items())


def _section(path: str, model: Any) -> str:
    lines = [f"\n## {path}\n"]
    if text := (model.__doc__ or "").strip():
        lines.append(f"\n{' '.join(text.split())}\n")
    lines.append("\n| key | default | meaning |\n|---|---|---|\n")
    nested = []
    for name, field in model.model_fields.items():
        if (section := section_of(field.annotation)) is not None:
            nested.append(_section(f"{path}.{name}", section))
            if field.default is None:
                lines.append(f"| `{path}.{name}` | `None` | {_meaning(field.description)} |\n")
        else:
            lines.append(
                f"| `{path}.{field.alias or name}` | {_default(field.default)} | "
                f"{_meaning(field.description)} |\n"
            )
    return "".join(lines + nested)


def _default(value: Any) -> str:
    return "required" if value is PydanticUndefined else f"`{value!r}`"


def _meaning(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


if __name__ == "__main__":
    print(document(), end="")
