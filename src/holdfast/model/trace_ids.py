"""One trace id per workload revision, from admission to serving.

The id is derived from the workload's uid and the revision, which every object of the workload carries. No component has
to pass it on.
"""

from __future__ import annotations

import hashlib
from typing import Any

from holdfast.model.template import template_hash
from holdfast.model.workload import Workload, wanted_template


def trace_id(workload_uid: str, revision: str) -> str:
    """32 hex digits, as in W3C Trace Context."""
    return hashlib.sha256(f"{workload_uid}/{revision}".encode()).hexdigest()[:32]


def trace_of(item: Any) -> str:
    """Trace id of an object; empty if it does not belong to a workload."""
    if isinstance(item, Workload):
        return trace_id(item.uid, template_hash(wanted_template(item)))
    spec = getattr(item, "spec", None)
    uid, revision = getattr(spec, "workload_uid", ""), getattr(spec, "revision", "")
    return trace_id(uid, revision) if uid and revision else ""
