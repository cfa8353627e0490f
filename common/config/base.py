"""Base class and types of the configuration's sections."""

from enum import IntEnum
from types import UnionType
from typing import Annotated, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Scope(IntEnum):
    """Where a setting may differ: nowhere in a run, between its starts, or between application and
    learner."""

    RUN = 0
    START = 1
    PART = 2


T = TypeVar("T")
PerStart = Annotated[T, Scope.START]
PerPart = Annotated[T, Scope.PART]


class Section(BaseModel):
    """Unknown keys and non-finite numbers are refused, also in free content, which is `JsonValue`."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


def section_of(annotation: object) -> type[BaseModel] | None:
    """The section class of a field, including an optional one; None for a plain value."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def scope_of(model: type[BaseModel], key: str) -> Scope:
    """The scope of `section.key` in `model`: the widest mark on its path."""
    scope, section = Scope.RUN, model
    for name in key.split("."):
        field = section.model_fields.get(name)
        if field is None:
            break
        scope = max([scope, *(mark for mark in field.metadata if isinstance(mark, Scope))])
        inner = section_of(field.annotation)
        if inner is None:
            break
        section = inner
    return scope
