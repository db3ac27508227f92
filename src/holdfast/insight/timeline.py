"""Timeline of one replica, or of a request's pending members: events in order, current stage and next owner.

Pure: built from the objects alone, so that the CLI, the console and tests show the same timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.insight.failed_starts import failed_start_fix, termination_lines
from holdfast.insight.remedies import cluster_level_fix
from holdfast.insight.why_not import SuggestedFix, suggestion
from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.decision import Decision, DecisionEntry
from holdfast.model.lifecycle import Stage, current_execution, is_out_of_contact, stage
from holdfast.model.meta import is_condition_true
from holdfast.model.reasons import Reason
from holdfast.model.replica import Phase, Replica
from holdfast.model.scheduling_request import RefusalCount, SchedulingRequest
from holdfast.model.times import parse_time

_SHOWN_SCORES = 6

_NEXT: dict[Stage, tuple[str, str]] = {
    Stage.QUEUED: ("scheduler", "finds a node"),
    Stage.RESERVED: ("authority", "binds it when all preconditions are met"),
    Stage.BOUND: ("agent", "starts the task"),
    Stage.STARTING: ("agent", "waits until the task runs"),
    Stage.RUNNING: ("agent", "waits for the readiness probe"),
    Stage.READY: ("serve", "adds its address to the Endpoint"),
    Stage.SERVING: ("nobody", "serving; nothing to do"),
    Stage.UNKNOWN: ("node-health", "waits for the node, or for its fence"),
    Stage.STOPPING: ("release", "waits for the agent to acknowledge the stop"),
    Stage.FAILED: ("release", "returns its claims"),
    Stage.SUCCEEDED: ("nobody", "completed; nothing to do"),
    Stage.RELEASED: ("release", "removes the finalizer"),
}


def next_step(current: Stage) -> tuple[str, str]:
    """Who acts next on a replica in this stage, and how."""
    return _NEXT[current]


class TimelineEvent(msgspec.Struct, frozen=True):
    """One event, with its time if that is recorded."""

    at: str
    stage: str
    owner: str
    text: str


class Timeline(msgspec.Struct, frozen=True, rename="camel"):
    """`next_retry_at` is the time of the next scheduled retry; an event in `retry_on` triggers it earlier."""

    subject: str
    events: tuple[TimelineEvent, ...]
    stage: str
    next_owner: str
    next_step: str
    reasons: tuple[str, ...] = ()
    next_retry_at: str = ""
    retry_on: tuple[str, ...] = ()
    position: int = 0
    queue_length: int = 0
    suggested_fix: str = ""


class Evidence(msgspec.Struct, frozen=True):
    """The objects a timeline is built from; each may be missing."""

    request: SchedulingRequest | None = None
    decision: Decision | None = None
    reservation: Reservation | None = None
    binding: Binding | None = None
    suggested_fix: SuggestedFix | None = None
    expression_refusal: str = ""
    """The filter expressions that refuse nodes now, if the caller may read the region's policy."""
    position: int = 0
    queue_length: int = 0


def replica_timeline(replica: Replica, evidence: Evidence) -> Timeline:
    current = stage(replica)
    owner, step = next_step(current)
    events = [
        TimelineEvent(
            replica.metadata.creation_timestamp,
            "Queued",
            "replicate",
            f"created for {replica.spec.assignment}, revision {replica.spec.revision}, "
            f"priority {replica.spec.priority}",
        ),
        *_decision_events(replica, evidence.decision),
        *_placement_events(replica, evidence),
        *_execution_events(replica),
        *_release_events(replica),
    ]
    events = _in_order(events)
    subject = f"replica {replica.metadata.namespace}/{replica.metadata.name}"
    if current is Stage.QUEUED and evidence.request is not None:
        return _pending_timeline(subject, evidence.request, evidence, tuple(events))
    reasons: tuple[str, ...] = ()
    fix = ""
    execution = current_execution(replica)
    if execution is not None and execution.phase is Phase.BACKING_OFF:
        reasons, step = (f"{execution.reason}: {execution.message}",), "restarts it after the backoff"
        fix = failed_start_fix(replica, execution)
    elif current is Stage.RUNNING and execution is not None and execution.message:
        reasons = (f"{execution.reason}: {execution.message}",)
    if execution is not None and not execution.ready:
        reasons += termination_lines(execution.last_exit)
    if current is Stage.RESERVED and evidence.reservation is not None:
        nominated = evidence.reservation.status.phase is ReservationPhase.NOMINATED
        reason = Reason.WAITING_FOR_VICTIMS if nominated else Reason.WAITING_FOR_GANG
        owner = "release" if nominated else "authority"
        victims = ", ".join(evidence.reservation.spec.victims)
        step = f"evicts {victims}" if nominated else "binds it with enough members of its gang"
        reasons, fix = (f"{reason.value}: {reason.sentence}",), cluster_level_fix(reason, replica.metadata.namespace)
    return Timeline(subject, tuple(events), current.value, owner, step, reasons, suggested_fix=fix)


def _in_order(events: Iterable[TimelineEvent]) -> list[TimelineEvent]:
    """Sorts by time. An event without a time stays behind its predecessor."""
    last = ""
    timed: list[tuple[float, TimelineEvent]] = []
    for event in events:
        last = event.at or last
        timed.append((parse_time(last) if last else 0.0, event))
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


def request_timeline(request: SchedulingRequest, evidence: Evidence) -> Timeline:
    """Timeline of all pending members of a request."""
    count = request.status.pending
    subject = f"{count} replica{'s' if count != 1 else ''} of {request.metadata.namespace}/{request.spec.workload}"
    events = (
        TimelineEvent(
            request.metadata.creation_timestamp, "Queued", "replicate", f"{len(request.spec.members)} queued"
        ),
    )
    return _pending_timeline(subject, request, evidence, events)


def refusal_text(refusal: RefusalCount) -> str:
    """One reason with its node count, examples and message."""
    count = f"{refusal.nodes} node{'s' if refusal.nodes != 1 else ''} " if refusal.nodes else ""
    examples = f" (such as {', '.join(refusal.examples)})" if refusal.examples else ""
    says = refusal.message or _reason_sentence(refusal.reason)
    return f"{count}{refusal.reason}{examples}: {says}"


def _pending_timeline(
    subject: str, request: SchedulingRequest, evidence: Evidence, events: Sequence[TimelineEvent]
) -> Timeline:
    status = request.status
    fix = suggestion(evidence.suggested_fix, (r.reason for r in status.reasons), request.metadata.namespace)
    late = [c for c in status.conditions if is_condition_true((c,), c.type) and c.type.startswith("Deadline")]
    reasons = tuple(refusal_text(_with_expression(r, evidence)) for r in status.reasons) + tuple(
        f"{c.reason}: {c.message}" for c in late
    )
    return Timeline(
        subject,
        tuple(events),
        "Queued",
        "scheduler",
        f"retries, after {status.attempts} failed attempts" if status.attempts else "has not tried yet",
        reasons,
        next_retry_at=status.next_retry_at,
        retry_on=status.retry_on,
        position=evidence.position or status.position,
        queue_length=evidence.queue_length,
        suggested_fix=fix,
    )


def _with_expression(refusal: RefusalCount, evidence: Evidence) -> RefusalCount:
    """The reason with the expression that refuses, or at least with the policy revision of the decision."""
    if refusal.reason != Reason.EXPRESSION_REFUSED:
        return refusal
    message = evidence.expression_refusal
    if not message and evidence.decision is not None:
        message = f"a filter expression of policy revision {evidence.decision.spec.policy_revision} rejects the node"
    return msgspec.structs.replace(refusal, message=message or refusal.message)


def _reason_sentence(reason: str) -> str:
    try:
        return Reason(reason).sentence  # type: ignore[call-arg]
    except ValueError:
        return ""


def _decision_events(replica: Replica, decision: Decision | None) -> Iterable[TimelineEvent]:
    if decision is None:
        return
    spec = decision.spec
    entry = next((e for e in spec.entries if e.uid == replica.uid), None)
    if entry is None:
        return
    where = f"policy {spec.policy_revision}, {spec.feasible} of {spec.nodes} nodes feasible"
    if not entry.node:
        text = f"no feasible node ({entry.reason}: {entry.message}); {where}"
    else:
        text = f"chose node {entry.node}{_why_chosen(entry)}; {where}"
    yield TimelineEvent(spec.decided_at, "Decided", "scheduler", f"{text}; decision {decision.metadata.name}")
    if entry.result == "Rejected":
        yield TimelineEvent(spec.decided_at, "Refused", "authority", f"{entry.reason}: {entry.message}")


def _why_chosen(entry: DecisionEntry) -> str:
    if entry.victims:
        return f", preempting {', '.join(entry.victims)}"
    parts = ", ".join(f"{s.name} {s.value} x {s.weight}" for s in entry.scores[:_SHOWN_SCORES])
    second = f", runner-up {entry.runner_up} with {entry.runner_up_score}" if entry.runner_up else ""
    return f" with score {entry.score} ({parts}){second}"


def _placement_events(replica: Replica, evidence: Evidence) -> Iterable[TimelineEvent]:
    placed = replica.status.placement
    if placed.reserved_at and not placed.bound_at:
        suffix = ""
        if evidence.reservation is not None and evidence.reservation.spec.victims:
            suffix = f", waiting for the release of {', '.join(evidence.reservation.spec.victims)}"
        yield TimelineEvent(placed.reserved_at, "Reserved", "authority", f"on node {placed.node}{suffix}")
    if placed.bound_at:
        again = f", attempt {placed.attempt}" if placed.attempt > 1 else ""
        yield TimelineEvent(
            placed.bound_at, "Bound", "authority", f"to node {placed.node} in zone {placed.zone}{again}"
        )
        for volume in evidence.binding.spec.volumes if evidence.binding is not None else ():
            kept = ", which was made for it and is empty" if volume.new else ", with its data"
            yield TimelineEvent(placed.bound_at, "Bound", "authority", f"with volume {volume.name}{kept}")
    if placed.released_reason:
        yield TimelineEvent("", "Released", "authority", f"the previous attempt was released: {placed.released_reason}")


def _execution_events(replica: Replica) -> Iterable[TimelineEvent]:
    execution = current_execution(replica)
    if execution is None:
        return
    if execution.started_at:
        image = f", image {execution.image}" if execution.image else ""
        yield TimelineEvent(execution.started_at, "Starting", "agent", f"started, {execution.restarts} restarts{image}")
    if execution.ready_since:
        ports = ",".join(str(port) for _, port in sorted(execution.ports.items()))
        yield TimelineEvent(
            execution.ready_since, "Ready", "agent", f"ready at {execution.address}{':' + ports if ports else ''}"
        )
    if execution.last_exit is not None:
        last_exit = execution.last_exit
        yield TimelineEvent(
            last_exit.at, "Exited", "agent", f"{last_exit.reason or 'ended'} {last_exit.message}".strip()
        )
    if execution.reason and not execution.ready:
        yield TimelineEvent("", execution.phase.value, "agent", f"{execution.reason}: {execution.message}")
    traffic = replica.status.traffic
    if traffic is not None and traffic.serving:
        yield TimelineEvent(traffic.since, "Serving", "serve", "its address is in the Endpoint")


def _release_events(replica: Replica) -> Iterable[TimelineEvent]:
    release = replica.status.release
    if release is not None:
        before = (
            f"attempt {release.attempt} was released: " if release.attempt < replica.status.placement.attempt else ""
        )
        text = f"{before}{release.reason}: {release.message}"
        yield TimelineEvent(release.at, "Stopping", release.requested_by or "release", text)
    contact = replica.status.contact
    if contact is not None and is_out_of_contact(replica):
        yield TimelineEvent(contact.since, "Unknown", "node-health", f"its node is out of contact: {contact.reason}")
