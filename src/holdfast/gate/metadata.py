"""Metadata rules for every kind: names, labels, finalizers, owners, size. Pure.

Yields every violation, not only the first.
"""

from __future__ import annotations

from holdfast.model.api_groups import RBAC_GROUP
from holdfast.model.kinds import BY_NAME, Kind
from holdfast.model.meta import ObjectMeta
from holdfast.model.ownership import FINALIZERS
from holdfast.model.validation import (
    Causes,
    check_annotations,
    check_label_key,
    check_labels,
    check_path_segment,
    check_range,
    check_subdomain,
    check_unique,
    duplicate,
    forbidden,
    invalid,
    required,
    too_long,
)

# Largest stored object. A larger one is refused. Equals etcd's default request size, so every store can hold it.
MAX_OBJECT_BYTES = 1536 * 1024
# Finalizers per object. More are refused; no kind needs more than a few.
MAX_FINALIZERS = 32
# Owner references per object. More are refused; garbage collection visits every one.
MAX_OWNERS = 32
# Labels per object. More are refused; every label is validated and copied to replicas.
MAX_LABELS = 128


def validate_metadata(kind: Kind, meta: ObjectMeta, old: ObjectMeta | None) -> Causes:
    if old is None:
        yield from _validate_names(kind, meta)
    if meta.labels and (old is None or meta.labels != old.labels):
        yield from check_labels("metadata.labels", meta.labels)
        if len(meta.labels) > MAX_LABELS:
            yield invalid("metadata.labels", f"{len(meta.labels)} labels", f"at most {MAX_LABELS}")
    if meta.annotations and (old is None or meta.annotations != old.annotations):
        yield from check_annotations("metadata.annotations", meta.annotations)
    if meta.finalizers and (old is None or meta.finalizers != old.finalizers):
        yield from _validate_finalizers(meta, old)
    if meta.owner_references and (old is None or meta.owner_references != old.owner_references):
        yield from _validate_owners(meta)


def _validate_names(kind: Kind, meta: ObjectMeta) -> Causes:
    if not meta.name:
        yield required("metadata.name", "name or generateName is required")
    elif kind.group == RBAC_GROUP:
        yield from check_path_segment("metadata.name", meta.name)
    else:
        yield from check_subdomain("metadata.name", meta.name)
    if kind.namespaced and not meta.namespace:
        yield required("metadata.namespace", f"{kind.plural} belong to a tenant")
    if not kind.namespaced and meta.namespace:
        yield forbidden("metadata.namespace", f"{kind.plural} are cluster-scoped")


def _validate_finalizers(meta: ObjectMeta, old: ObjectMeta | None) -> Causes:
    if len(meta.finalizers) > MAX_FINALIZERS:
        yield invalid("metadata.finalizers", f"{len(meta.finalizers)} finalizers", f"at most {MAX_FINALIZERS}")
    yield from check_unique("metadata.finalizers", meta.finalizers)
    held = old.finalizers if old is not None else ()
    for index, name in enumerate(meta.finalizers):
        path = f"metadata.finalizers[{index}]"
        if name in held:
            continue
        if old is not None and old.terminating:
            yield forbidden(path, f"no new finalizers can be added if the object is being deleted, found {name!r}")
        if name in FINALIZERS:
            continue
        if "/" not in name:
            yield invalid(path, name, "should be domain qualified, for example example.com/cleanup")
        else:
            yield from check_label_key(path, name)


def _validate_owners(meta: ObjectMeta) -> Causes:
    if len(meta.owner_references) > MAX_OWNERS:
        yield invalid("metadata.ownerReferences", f"{len(meta.owner_references)} owners", f"at most {MAX_OWNERS}")
    seen: set[str] = set()
    controllers = 0
    for index, ref in enumerate(meta.owner_references):
        path = f"metadata.ownerReferences[{index}]"
        for name, value in (("apiVersion", ref.api_version), ("kind", ref.kind), ("name", ref.name), ("uid", ref.uid)):
            if not value:
                yield required(f"{path}.{name}")
        if ref.uid in seen:
            yield duplicate(f"{path}.uid", ref.uid)
        seen.add(ref.uid)
        controllers += ref.controller
        owner = BY_NAME.get(ref.kind)
        if owner is not None and owner.namespaced and not meta.namespace:
            yield invalid(f"{path}.kind", ref.kind, "a cluster-scoped object cannot be owned by a namespaced one")
    if controllers > 1:
        yield invalid("metadata.ownerReferences", f"{controllers} controllers", "only one owner can be the controller")


def validate_size(value: bytes) -> Causes:
    if len(value) > MAX_OBJECT_BYTES:
        yield too_long("", MAX_OBJECT_BYTES)


def validate_observed(observed: int, generation: int) -> Causes:
    """observedGeneration cannot be above the object's generation."""
    yield from check_range("status.observedGeneration", observed, 0, max(generation, 0))
