"""Base class and types of the configuration's sections."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Settings: unknown keys and numbers that are not finite are refused. A field of free content holds
    `JsonValue`, so that this applies inside it too."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section class of a field, including an optional one; None for a plain value."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
