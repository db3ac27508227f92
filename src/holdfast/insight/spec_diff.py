"""Differences between a stored workload spec and a manifest with defaults applied, field by field. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.model.workload import Workload

# Fields listed per workload. Further differences are not shown.
FIELDS_MAX = 50
ABSENT = object()


class FieldChange(msgspec.Struct, frozen=True):
    """One changed field, by its path below spec. `old` or `new` is None if the field is absent."""

    field: str
    old: Any = None
    new: Any = None

    def __str__(self) -> str:
        return f"{self.field} {_format(self.old)} → {_format(self.new)}"


class WorkloadChange(msgspec.Struct, frozen=True):
    """The effect of a manifest on one workload. False if the workload exists and no field changes."""

    workload: str
    new: bool = False
    fields: tuple[FieldChange, ...] = ()

    def __bool__(self) -> bool:
        return self.new or bool(self.fields)


def workload_change(new: Workload, stored: Workload | None) -> WorkloadChange:
    """Compares `new`, with defaults applied, with the stored workload."""
    name = f"{new.metadata.namespace}/{new.metadata.name}"
    if stored is None:
        return WorkloadChange(name, new=True)
    found = _differences("", msgspec.to_builtins(stored.spec), msgspec.to_builtins(new.spec))
    return WorkloadChange(name, fields=tuple(change for _, change in zip(range(FIELDS_MAX), found, strict=False)))


def field_changes(old: dict[str, Any], new: dict[str, Any]) -> tuple[FieldChange, ...]:
    """The fields in which two parts of a spec differ."""
    return tuple(_differences("", old, new))[:FIELDS_MAX]


def _differences(path: str, old: Any, new: Any) -> Iterator[FieldChange]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            below = f"{path}.{name}" if path else name
            yield from _differences(below, old.get(name, ABSENT), new.get(name, ABSENT))
    elif old != new:
        yield FieldChange(path, None if old is ABSENT else old, None if new is ABSENT else new)


def _format(value: Any) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
