"""Interns equal parts of decoded objects: templates, placement rules, labels, amounts, texts.

Objects by the thousand have the same template and the same labels, and a decoder makes each of them again.
`share_parts` replaces such a part of a new object by the equal part that was decoded before. Parts are compared by
their JSON, so a shared part is what the object's own bytes decode to. A published object is never changed,
so sharing its parts has no visible effect.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from holdfast.model import limits
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.quantity import Amount
from holdfast.model.template import Template
from holdfast.model.validation import SHARED_PARTS_BYTES
from holdfast.model.workload import Rollout, RolloutBlock

_SHARED_TYPES: tuple[Any, ...] = (Template, PlacementRules, Rollout, dict[str, str], dict[str, Amount])
"""Types of the fields of a spec that are shared. Their values are few, compared with the objects that have them."""
_SPEC_TEXTS = frozenset({"priority_class", "priority_class_name", "pool", "region", "revision", "zone"})
_CONDITION_TEXTS = ("type", "status", "reason", "message", "last_transition_time")
_MANAGED_TEXTS = ("manager", "operation", "api_version", "time", "fields_type", "subresource")
_ROLLOUT_TEXTS = ("revision", "previous_revision", "last_good_revision", "phase", "message", "progressed_at")
_REVISION_TEXTS = ("revision", "at")
"""Texts that are equal in many objects, or several times in one. The interpreter drops one with its last user."""
_NOTHING: dict[str, Any] = {}
"""Stands for every empty dict of metadata: most objects have no annotations, and each would have a dict of its own."""

_encode = msgspec.json.Encoder().encode


class SharedParts:
    """Parts by their JSON. At a bound, the parts that were not used since it was last reached are dropped."""

    def __init__(self, limit: int, bytes_limit: int = SHARED_PARTS_BYTES) -> None:
        self._limit = limit
        self._bytes_limit = bytes_limit
        self._recent_bytes = 0
        self._recent: dict[bytes, Any] = {}
        self._older: dict[bytes, Any] = {}

    def of(self, part: Any) -> Any:
        """The part that stands for all parts equal to this one."""
        value = _encode(part)
        found = self._recent.get(value)
        return found if found is not None else self._add(value, part)

    def _add(self, value: bytes, part: Any) -> Any:
        found = self._older.get(value, part)
        if len(self._recent) >= self._limit or self._recent_bytes >= self._bytes_limit:
            self._older, self._recent, self._recent_bytes = self._recent, {}, 0
        self._recent[value] = found
        self._recent_bytes += len(value)
        return found


class _SharedFields(NamedTuple):
    """The shared fields of one type of spec."""

    parts: tuple[tuple[str, SharedParts], ...]
    texts: tuple[str, ...]


_by_type: dict[Any, SharedParts] = {type_: SharedParts(limits.SHARED_PARTS_CACHED) for type_ in _SHARED_TYPES}
_labels = _by_type[dict[str, str]]
_templates = _by_type[Template]
_owned_fields = SharedParts(limits.SHARED_PARTS_CACHED)
_fields: dict[type[Any], _SharedFields] = {}


def _fields_of(type_: type[Any]) -> _SharedFields:
    found = _fields.get(type_)
    if found is None:
        fields = msgspec.structs.fields(type_)
        found = _fields[type_] = _SharedFields(
            tuple((field.name, _by_type[field.type]) for field in fields if field.type in _SHARED_TYPES),
            tuple(field.name for field in fields if field.type is str and field.name in _SPEC_TEXTS),
        )
    return found


def share_parts(item: Object) -> None:
    """Shares the parts of an object that was just decoded and that nobody else can see yet."""
    _share_meta(item.metadata)
    spec = getattr(item, "spec", None)
    if isinstance(spec, msgspec.Struct):
        fields = _fields_of(type(spec))
        for name, parts in fields.parts:
            force_setattr(spec, name, parts.of(getattr(spec, name)))
        _share_texts(spec, fields.texts)
    share_status_parts(getattr(item, "status", None))


def share_status_parts(status: Any) -> None:
    """Shares the parts of a status that was just decoded."""
    for condition in getattr(status, "conditions", ()):
        _share_texts(condition, _CONDITION_TEXTS)
    rollout = getattr(status, "rollout", None)
    if isinstance(rollout, RolloutBlock):
        _share_texts(rollout, _ROLLOUT_TEXTS)
        for revision in rollout.history:
            force_setattr(revision, "template", _templates.of(revision.template))
            _share_texts(revision, _REVISION_TEXTS)


def _share_meta(meta: ObjectMeta) -> None:
    force_setattr(meta, "namespace", sys.intern(meta.namespace))
    force_setattr(meta, "creation_timestamp", sys.intern(meta.creation_timestamp))
    force_setattr(meta, "labels", _labels.of(meta.labels) if meta.labels else _NOTHING)
    # An annotation is rarely equal in two objects.
    if not meta.annotations:
        force_setattr(meta, "annotations", _NOTHING)
    if meta.finalizers:
        force_setattr(meta, "finalizers", tuple(map(sys.intern, meta.finalizers)))
    for entry in meta.managed_fields:
        _share_texts(entry, _MANAGED_TEXTS)
        # Most of a decoded object, and equal for all objects of one manifest.
        force_setattr(entry, "fields_v1", _owned_fields.of(entry.fields_v1))


def _share_texts(part: Any, names: tuple[str, ...]) -> None:
    for name in names:
        force_setattr(part, name, sys.intern(getattr(part, name)))
