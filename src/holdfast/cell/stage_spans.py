"""Spans of the stages that a cell's process carries out: admit, assign, link, queue, plan, reserve, bind, serve.

Each is made from the objects of a durable commit and the times recorded in them, in the process that made the commit.
The agent makes those of its own stages (`agent.task_spans`). Exists only while traces are exported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from holdfast.controllers.cache import CacheChange
from holdfast.controllers.informer import Informers
from holdfast.foundation.otlp import Attribute, Span
from holdfast.foundation.ports import Clock
from holdfast.foundation.tracing import CURRENT_REQUEST, Tracer, observes
from holdfast.gate.write_plan import StagedWrite
from holdfast.model import trace_ids
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.decision import Decision, DecisionSpec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.replica import Replica
from holdfast.model.scheduling_request import SchedulingRequest
from holdfast.model.times import parse_time
from holdfast.model.trace_ids import TraceContext, context_of, replica_context, span_id
from holdfast.model.workload import Workload
from holdfast.store.objects import Objects

_DECISION = kind_of(Decision)
_log = structlog.get_logger()


class StageSpans:
    def __init__(self, cell: str, tracer: Tracer, objects: Objects, clock: Clock) -> None:
        self._cell = cell
        self._tracer = tracer
        self._objects = objects
        self._clock = clock

    # Commits of the gate

    @observes
    def committed(self, changed: Sequence[StagedWrite], submitted_s: float) -> None:
        for staged in changed:
            before, after = staged.before, staged.after
            if isinstance(after, Workload):
                self._admitted(before, after)
            elif isinstance(after, Assignment):
                self._assigned(before, after, submitted_s)
            elif isinstance(after, Replica):
                self._replica_written(before, after)

    def _admitted(self, before: Object | None, after: Workload) -> None:
        context, former = context_of(after), context_of(before) if before is not None else None
        if context is None or (former is not None and former.trace_id == context.trace_id):
            return
        now = self._clock.now()
        self._tracer.remember(now, trace_ids.ADMIT, context.trace_id)
        request = CURRENT_REQUEST.get()
        _log.info(
            "workload_admitted",
            object=str(after.key),
            uid=after.uid,
            generation=after.metadata.generation,
            request=request.id if request is not None else "",
            trace=context.trace_id,
        )
        if not self._tracer.is_sampled(context):
            return
        caller = request.caller if request is not None else None
        follows = caller is not None and caller.trace_id == context.trace_id
        attributes = {**_workload(after), "holdfast.generation": after.metadata.generation}
        if request is not None:
            attributes["holdfast.request.id"] = request.id
        self._tracer.emit(
            Span(
                trace_ids.ADMIT,
                context.trace_id,
                context.span_id,
                request.began_s if request is not None else now,
                now,
                "holdfast.gate",
                parent_id=caller.span_id if caller is not None and follows else "",
                attributes=attributes,
                links=((former.trace_id, former.span_id),) if former is not None else (),
                is_request=request is not None,
            )
        )

    def _assigned(self, before: Object | None, after: Assignment, submitted_s: float) -> None:
        """In the global cell the decision of `assign`; in a region the copy that the link has stored.

        The span ends when its write was submitted: a watcher can store the next stage before this process hears that
        the write is durable.
        """
        context = context_of(after)
        former = context_of(before) if before is not None else None
        if context is None or (former is not None and former.trace_id == context.trace_id):
            return
        if not self._tracer.is_sampled(context):
            return
        trace = context.trace_id
        here = span_id(trace, trace_ids.ASSIGN, after.uid)
        attributes = {**_owned(after), "holdfast.assignment": after.metadata.name, "cloud.region": after.spec.region}
        links: tuple[tuple[str, str], ...] = ()
        if after.spec.purpose is Purpose.RECOVERY:
            admitted = trace_ids.trace_id(after.spec.workload_uid, after.spec.revision)
            links = ((admitted, span_id(admitted, trace_ids.ADMIT, after.spec.workload_uid)),)
        if self._cell == "global":
            began = self._tracer.recall(trace_ids.ADMIT, trace) or submitted_s
            self._tracer.remember(began, trace_ids.ADMIT, trace)  # for the Assignments of other regions
            span = Span(
                trace_ids.ASSIGN,
                trace,
                here,
                began,
                submitted_s,
                "holdfast.assign",
                parent_id=context.span_id,
                attributes={**attributes, "holdfast.replicas": after.spec.replicas},
                links=links,
            )
        else:
            began = self._tracer.recall(trace_ids.LINK, after.uid) or submitted_s
            stored = span_id(trace, trace_ids.LINK, after.uid)
            span = Span(
                trace_ids.LINK,
                trace,
                stored,
                began,
                submitted_s,
                "holdfast.link",
                parent_id=here,
                attributes=attributes,
            )
        self._tracer.emit(span)

    def _replica_written(self, before: Object | None, after: Replica) -> None:
        traffic = after.status.traffic
        if before is None:
            self._tracer.remember(self._clock.now(), trace_ids.QUEUE, after.uid)
            return
        assert isinstance(before, Replica)
        attempt, was = after.status.placement.attempt, before.status.traffic
        if traffic is None or not traffic.serving or traffic.attempt != attempt:
            return
        if was is not None and was.serving and was.attempt == attempt:
            return
        context, ran = replica_context(after), after.status.execution
        if context is None or ran is None or not self._tracer.is_sampled(context):
            return
        since = parse_time(traffic.since) if traffic.since else self._clock.now()
        self._tracer.emit(
            Span(
                trace_ids.SERVE,
                context.trace_id,
                span_id(context.trace_id, trace_ids.SERVE, after.uid, attempt),
                parse_time(ran.ready_since) if ran.ready_since else since,
                since,
                "holdfast.serve",
                parent_id=span_id(context.trace_id, trace_ids.READY, after.uid, attempt),
                attributes=self._replica(after),
            )
        )

    # The link

    def watch_originals(self, peer: Informers) -> None:
        """Remembers when an Assignment arrived from the global cell."""
        peer.of(Assignment).on_change(self._on_originals)

    @observes
    def _on_originals(self, changes: Sequence[CacheChange[Assignment]]) -> None:
        for new, _ in changes:
            if new is not None and self._tracer.is_sampled(context_of(new)):
                self._tracer.remember(self._clock.now(), trace_ids.LINK, new.uid)

    # The scheduler

    @observes
    def planned(self, decisions: Sequence[tuple[SchedulingRequest, Decision]], began_s: float) -> None:
        """One span for each request of a planned batch. A request that finds no node has one for every attempt."""
        now = self._clock.now()
        for request, decision in decisions:
            self._tracer.remember(now, trace_ids.PLAN, decision.metadata.namespace, decision.metadata.name)
            context = context_of(request)
            if context is None or not self._tracer.is_sampled(context):
                continue
            spec = decision.spec
            placed = sum(bool(entry.node) for entry in spec.entries)
            self._tracer.emit(
                Span(
                    trace_ids.PLAN,
                    context.trace_id,
                    span_id(context.trace_id, trace_ids.PLAN, decision.metadata.name),
                    began_s,
                    now,
                    "holdfast.scheduler",
                    parent_id=span_id(context.trace_id, trace_ids.LINK, _owner_uid(request)),
                    attributes=self._plan(request, decision, placed),
                )
            )

    def _plan(self, request: SchedulingRequest, decision: Decision, placed: int) -> dict[str, Attribute]:
        spec: DecisionSpec = decision.spec
        found: dict[str, Attribute] = {
            **_owned(request),
            "cloud.region": self._cell,
            "holdfast.decision": decision.metadata.name,
            "holdfast.replicas": len(spec.entries),
            "holdfast.replicas.placed": placed,
            "holdfast.nodes": spec.nodes,
            "holdfast.nodes.feasible": spec.feasible,
        }
        if spec.refusals:
            found["holdfast.reason"] = spec.refusals[0].reason
        return found

    # The authority

    def watch_placements(self, informers: Informers, is_leading: Callable[[], bool]) -> None:
        """Spans of the claims that this process has committed as the elected authority."""

        def on_replicas(changes: Sequence[CacheChange[Replica]]) -> None:
            if is_leading():
                for new, old in changes:
                    if new is not None and old is not None and new.status.placement is not old.status.placement:
                        self._placed(new, old)

        informers.of(Replica).on_change(on_replicas)

    @observes
    def _placed(self, new: Replica, old: Replica) -> None:
        placed, was = new.status.placement, old.status.placement
        newly_reserved = placed.reserved_at and (placed.attempt, placed.reserved_at) != (was.attempt, was.reserved_at)
        newly_bound = placed.bound_at and (placed.attempt, placed.bound_at) != (was.attempt, was.bound_at)
        context = replica_context(new)
        if context is None or not (newly_reserved or newly_bound) or not self._tracer.is_sampled(context):
            return
        trace, id_ = context.trace_id, (new.uid, placed.attempt)
        attributes = self._replica(new)
        if newly_reserved:
            self._reserved(new, context, attributes)
        if newly_bound:
            bound = parse_time(placed.bound_at)
            self._tracer.emit(
                Span(
                    trace_ids.BIND,
                    trace,
                    span_id(trace, trace_ids.BIND, *id_),
                    parse_time(placed.reserved_at) if placed.reserved_at else bound,
                    bound,
                    "holdfast.authority",
                    parent_id=span_id(trace, trace_ids.RESERVE, *id_),
                    attributes={**attributes, "holdfast.binding": placed.binding},
                )
            )

    def _reserved(self, new: Replica, context: TraceContext, attributes: dict[str, Attribute]) -> None:
        placed, namespace = new.status.placement, new.metadata.namespace
        trace, id_, reserved = context.trace_id, (new.uid, placed.attempt), parse_time(placed.reserved_at)
        decision: Any = self._objects.get(_DECISION, namespace, placed.decision) if placed.decision else None
        decided = parse_time(decision.spec.decided_at) if decision is not None else reserved
        planned = self._tracer.recall(trace_ids.PLAN, namespace, placed.decision) or decided
        self._tracer.remember(planned, trace_ids.PLAN, namespace, placed.decision)  # for the other replicas of it
        first = placed.attempt <= 1
        queued = self._tracer.recall(trace_ids.QUEUE, new.uid) if first else None
        if queued is None:
            queued = parse_time(new.metadata.creation_timestamp) if first else decided
        former = context_of(new)
        queue_id = span_id(trace, trace_ids.QUEUE, *id_)
        queue = Span(
            trace_ids.QUEUE,
            trace,
            queue_id,
            min(queued, decided),
            decided,
            "holdfast.scheduler",
            parent_id=span_id(trace, trace_ids.LINK, _owner_uid(new)) if first else "",
            attributes=attributes,
            links=() if first or former is None or not former.span_id else ((former.trace_id, former.span_id),),
        )
        self._tracer.emit(queue)
        self._tracer.emit(
            Span(
                trace_ids.RESERVE,
                trace,
                span_id(trace, trace_ids.RESERVE, *id_),
                min(planned, reserved),
                reserved,
                "holdfast.authority",
                parent_id=queue_id,
                attributes={**attributes, "holdfast.decision": placed.decision},
            )
        )

    def binding_annotations(self, replica: Replica) -> dict[str, str]:
        """The context for the agent, whose spans follow the bind; none if the trace is not sampled."""
        context = replica_context(replica)
        if context is None or not self._tracer.is_sampled(context):
            return {}
        bind = span_id(context.trace_id, trace_ids.BIND, replica.uid, replica.status.placement.attempt)
        return {trace_ids.TRACEPARENT_ANNOTATION: trace_ids.traceparent(TraceContext(context.trace_id, bind, True))}

    def _replica(self, replica: Replica) -> dict[str, Attribute]:
        placed = replica.status.placement
        return {
            **_owned(replica),
            "cloud.region": self._cell,
            "cloud.availability_zone": placed.zone,
            "holdfast.replica": replica.metadata.name,
            "holdfast.replica.uid": replica.uid,
            "holdfast.attempt": placed.attempt,
            "holdfast.node": placed.node,
        }


def _workload(workload: Workload) -> dict[str, Attribute]:
    return {
        "holdfast.tenant": workload.metadata.namespace,
        "holdfast.workload": workload.metadata.name,
        "holdfast.workload.uid": workload.uid,
    }


def _owned(item: Assignment | SchedulingRequest | Replica) -> dict[str, Attribute]:
    return {
        "holdfast.tenant": item.metadata.namespace,
        "holdfast.workload": item.spec.workload,
        "holdfast.workload.uid": item.spec.workload_uid,
        "holdfast.revision": item.spec.revision,
    }


def _owner_uid(item: Object) -> str:
    return next((owner.uid for owner in item.metadata.owner_references if owner.kind == "Assignment"), "")
