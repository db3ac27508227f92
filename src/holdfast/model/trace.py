"""One trace id for the way of a workload's revision, from admission to serving.

It is derived from what every object on the way carries, the workload's uid and the revision, so that no part has to
hand it on and none can lose it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from holdfast.model.template import template_hash
from holdfast.model.workload import Workload


def trace_id(workload_uid: str, revision: str) -> str:
    """32 hex digits, as W3C traces have them."""
    return hashlib.sha256(f"{workload_uid}/{revision}".encode()).hexdigest()[:32]


def trace_of(item: Any) -> str:
    """The trace an object belongs to; empty for objects that are on no workload's way."""
    if isinstance(item, Workload):
        return trace_id(item.uid, template_hash(item.spec.template))
    spec = getattr(item, "spec", None)
    uid, revision = getattr(spec, "workload_uid", ""), getattr(spec, "revision", "")
    return trace_id(uid, revision) if uid and revision else ""
