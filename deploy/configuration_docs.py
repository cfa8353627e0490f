"""Generate docs/reference/configuration.md from the pydantic models (`make reference`)."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from hora_rl.common.config import Config
from hora_rl.common.config.base import Scope, scope_of, section_of

HEAD = """# Configuration

One YAML file per experiment feeds `serve deploy` (as application arguments), the learner and the one-machine
run. `hora check FILE` validates it; any value is changed on the command line with `-s section.key=value`.
Unknown keys and impossible values are refused with the key and the reason. Γ is `rollout.prompts_per_batch`,
G `rollout.group_size`, G0 `rollout.pre_rollouts`. A key with ⟳ may change when the run starts
again (`--resume`, another `serve deploy`); one with ⇄ may also differ between application and learner; all
others are fixed for the run. Generated from `common/config/`.
"""
MARKS = {Scope.RUN: "", Scope.START: " ⟳", Scope.PART: " ⇄"}


def document() -> str:
    """The page, with the sections in the order of the models."""
    return HEAD + "".join(_section(name, field.annotation) for name, field in Config.model_fields.items())


def _section(path: str, model: Any) -> str:
    lines = [f"\n## {path}\n"]
    if text := (model.__doc__ or "").strip():
        lines.append(f"\n{' '.join(text.split())}\n")
    lines.append("\n| key | default | meaning |\n|---|---|---|\n")
    nested = []
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            nested.append(_section(f"{path}.{name}", section))
            if field.default is not None:
                continue
        elif (each := _named(field.annotation)) is not None:
            nested.append(_section(f"{path}.{name}.NAME", each))
        key = f"`{path}.{field.alias or name}`"
        said = field.description or ""
        meaning = said.replace("|", "\\|") + _choices(field.annotation, said)
        mark = MARKS[scope_of(Config, f"{path}.{name}")]
        lines.append(f"| {key}{mark} | {_default(field.default)} | {meaning} |\n")
    return "".join(lines + nested)


def _named(annotation: Any) -> type[BaseModel] | None:
    """The model of a section's values if the user names the keys, else None."""
    values = get_args(annotation)[1:]
    return next((v for v in values if isinstance(v, type) and issubclass(v, BaseModel)), None)


def _choices(annotation: Any, said: str) -> str:
    """The allowed values of a `Literal` key, unless `said` names them all."""
    kinds = [annotation, *get_args(annotation)]
    values = [str(v) for kind in kinds if get_origin(kind) is Literal for v in get_args(kind)]
    if all(value in said for value in values):
        return ""
    return f" One of {', '.join(f'`{value}`' for value in values)}."


def _default(value: Any) -> str:
    return "required" if value is PydanticUndefined else f"`{value!r}`"


if __name__ == "__main__":
    print(document(), end="")
