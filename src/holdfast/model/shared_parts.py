"""Equal parts of decoded objects are one part in memory: templates, placement rules, labels, amounts, conditions.

Objects by the thousand have the same template and the same labels, and a decoder makes each of them again. `share_parts`
replaces such a part of a new object by the equal part that was decoded before. Parts are compared by their JSON, so a
shared part is exactly what the object's own bytes decode to. Nobody changes an object that others can see, so nobody
can tell a shared part from an own one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from holdfast.model import limits
from holdfast.model.meta import Condition, ManagedFields, Object, ObjectMeta
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.quantity import Amount
from holdfast.model.template import Template
from holdfast.model.workload import Rollout, RolloutBlock

_SHARED_TYPES: tuple[Any, ...] = (Template, PlacementRules, Rollout, dict[str, str], dict[str, Amount])
"""Types of the fields that are shared. Their values are few, compared with the objects that have them."""

_encode = msgspec.json.Encoder().encode


class SharedParts:
    """The parts in use, by their JSON. At the bound, the parts that were not used since the last time are dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._recent: dict[bytes, Any] = {}
        self._older: dict[bytes, Any] = {}

    def of(self, part: Any) -> Any:
        """The part that stands for all parts equal to this one."""
        value = _encode(part)
        found = self._recent.get(value)
        if found is None:
            found = self._older.get(value, part)
            if len(self._recent) >= self._limit:
                self._older, self._recent = self._recent, {}
            self._recent[value] = found
        return found


_NOTHING: dict[str, Any] = {}
"""Stands for every empty dict: most objects have no labels, annotations or environment."""
_by_type: dict[Any, SharedParts] = {}


def _parts_of(type_: Any) -> SharedParts:
    return _by_type.setdefault(type_, SharedParts(limits.SHARED_PARTS_CACHED))


_owned_fields = _parts_of(ManagedFields)
_templates = _parts_of(Template)
_texts = _parts_of(dict[str, str])
_MANAGED_TEXTS = ("manager", "operation", "api_version", "time", "fields_type", "subresource")
_CONDITION_TEXTS = ("type", "status", "reason", "message", "last_transition_time")
_Rows = tuple[tuple[str, SharedParts], ...]
_rows: dict[type[Any], _Rows] = {}


def _rows_of(type_: type[Any]) -> _Rows:
    """The shared fields of a struct type, each with the parts of the field's type."""
    found = _rows.get(type_)
    if found is None:
        fields: Sequence[Any] = msgspec.structs.fields(type_)
        found = tuple((field.name, _parts_of(field.type)) for field in fields if field.type in _SHARED_TYPES)
        _rows[type_] = found
    return found


def share_parts(item: Object) -> None:
    """Shares the parts of an object that was just decoded and that nobody else can see yet."""
    _share_meta(item.metadata)
    spec = getattr(item, "spec", None)
    if isinstance(spec, msgspec.Struct):
        for name, parts in _rows_of(type(spec)):
            force_setattr(spec, name, parts.of(getattr(spec, name)))
    status = getattr(item, "status", None)
    if status is not None:
        share_status_parts(status)


def share_status_parts(status: Any) -> None:
    """Shares the parts of a status that was just decoded."""
    for condition in getattr(status, "conditions", ()):
        _share_condition(condition)
    rollout = getattr(status, "rollout", None)
    if isinstance(rollout, RolloutBlock):
        for revision in rollout.history:
            force_setattr(revision, "template", _templates.of(revision.template))


def _share_meta(meta: ObjectMeta) -> None:
    force_setattr(meta, "namespace", sys.intern(meta.namespace))
    force_setattr(meta, "creation_timestamp", sys.intern(meta.creation_timestamp))
    force_setattr(meta, "labels", _texts.of(meta.labels) if meta.labels else _NOTHING)
    force_setattr(meta, "annotations", _texts.of(meta.annotations) if meta.annotations else _NOTHING)
    if meta.finalizers:
        force_setattr(meta, "finalizers", tuple(map(sys.intern, meta.finalizers)))
    for entry in meta.managed_fields:
        # managedFields is most of a decoded object, and equal for all objects of one manifest.
        for name in _MANAGED_TEXTS:
            force_setattr(entry, name, sys.intern(getattr(entry, name)))
        force_setattr(entry, "fields_v1", _owned_fields.of(entry.fields_v1))


def _share_condition(condition: Condition) -> None:
    for name in _CONDITION_TEXTS:
        force_setattr(condition, name, sys.intern(getattr(condition, name)))
