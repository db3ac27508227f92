"""Trace context of an object: one trace per workload revision, from admission to serving.

Trace and span ids are computed from uids that every object of the workload carries, so no component has to pass them
on. If the caller of the API sent a W3C `traceparent`, its trace continues: admission keeps the context in an
annotation, and every object that follows from the Workload gets a copy.

- A further attempt of a replica, and work placed by a recovery, begin traces of their own, hours later perhaps.
- A context decides nothing but what is exported.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from holdfast.model.assignment import Purpose
from holdfast.model.replica import Replica
from holdfast.model.template import template_hash
from holdfast.model.workload import Workload, wanted_template

TRACEPARENT_ANNOTATION = "holdfast.dev/traceparent"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 1
ADMIT, ASSIGN, LINK, QUEUE, PLAN = "admit", "assign", "link", "queue", "plan"
RESERVE, BIND, START, READY, SERVE = "reserve", "bind", "start", "ready", "serve"


class TraceContext(msgspec.Struct, frozen=True):
    """`span_id` is the parent of the next span. `sampled` is the decision of the caller; None leaves it to the cell."""

    trace_id: str
    span_id: str = ""
    sampled: bool | None = None


def parse_traceparent(text: str) -> TraceContext | None:
    """The context of a W3C `traceparent`; None if the text is not valid, as the standard demands."""
    found = _TRACEPARENT.fullmatch(text) if len(text) <= 200 else None
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace, 16) or not int(span, 16):
        return None
    return TraceContext(trace, span, bool(int(flags, 16) & _SAMPLED))


def traceparent(context: TraceContext) -> str:
    return f"00-{context.trace_id}-{context.span_id}-{int(bool(context.sampled)):02x}"


def span_id(trace: str, stage: str, *ids: object) -> str:
    """16 hex digits. The same stage of the same object has the same id in every process."""
    return hashlib.sha256("/".join((trace, stage, *map(str, ids))).encode()).hexdigest()[:16]


def trace_id(workload_uid: str, revision: str) -> str:
    """32 hex digits, as in W3C Trace Context."""
    return hashlib.sha256(f"{workload_uid}/{revision}".encode()).hexdigest()[:32]


def kept_context(item: Any) -> dict[str, str]:
    """The annotation with the caller's context, for an object that follows from this one; empty if there is none."""
    text = item.metadata.annotations.get(TRACEPARENT_ANNOTATION, "")
    return {TRACEPARENT_ANNOTATION: text} if text else {}


def context_of(item: Any) -> TraceContext | None:
    """The trace that the object belongs to, with the admission as parent; None if it belongs to no workload."""
    annotations = item.metadata.annotations
    if annotations and (text := annotations.get(TRACEPARENT_ANNOTATION, "")):
        kept = parse_traceparent(text)
        if kept is not None:
            return kept
    if isinstance(item, Workload):
        return _admitted(item.uid, template_hash(wanted_template(item)))
    spec = getattr(item, "spec", None)
    uid, revision = getattr(spec, "workload_uid", ""), getattr(spec, "revision", "")
    if not uid or not revision:
        return None
    if getattr(spec, "purpose", None) is Purpose.RECOVERY:
        return TraceContext(trace_id(uid, f"{revision}/recovery"))
    return _admitted(uid, revision)


def replica_context(replica: Replica) -> TraceContext | None:
    """The trace of the replica's present attempt. The first belongs to the trace of its workload."""
    attempt = replica.status.placement.attempt
    if attempt <= 1:
        return context_of(replica)
    return TraceContext(trace_id(replica.uid, str(attempt)))


def _admitted(workload_uid: str, revision: str) -> TraceContext:
    trace = trace_id(workload_uid, revision)
    return TraceContext(trace, span_id(trace, ADMIT, workload_uid))


def trace_of(item: Any) -> str:
    """Trace id of an object, for logs; empty if it does not belong to a workload."""
    found = replica_context(item) if isinstance(item, Replica) else context_of(item)
    return found.trace_id if found is not None else ""
