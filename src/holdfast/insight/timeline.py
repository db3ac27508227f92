"""Timeline of one replica, or of a request's pending members: events in order, current stage and next owner.

Pure: built from the objects alone, so that the CLI, the console and tests show the same timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.insight.why_not import SuggestedFix, cluster_level_fix
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
    Stage.FAILED: ("release", "releases its claims"),
    Stage.SUCCEEDED: ("nobody", "completed; nothing to do"),
    Stage.RELEASED: ("release", "removes the finalizer"),
}


class TimelineEvent(msgspec.Struct, frozen=True):
    """One event, with its time if that is recorded."""

    at: str
    stage: str
    owner: str
    text: str


class Timeline(msgspec.Struct, frozen=True, rename="camel"):
    """`look_again` is the time of the next scheduled retry; an event in `wake_on` triggers it earlier."""

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
    position: int = 0
    queue_length: int = 0


def replica_timeline(replica: Replica, known: Evidence) -> Timeline:
    now_at = stage(replica)
    owner, step = _NEXT[now_at]
    events = [
        TimelineEvent(
            replica.metadata.creation_timestamp, "Queued", "replicate",
            f"created for {replica.spec.assignment}, revision {replica.spec.revision}, rank {replica.spec.priority}",
        ),
        *_decided(replica, known.decision),
        *_placed(replica, known),
        *_ran(replica),
        *_left(replica),
    ]  # fmt: skip
    events = _in_order(events)
    subject = f"replica {replica.metadata.namespace}/{replica.metadata.name}"
    if now_at is Stage.QUEUED and known.request is not None:
        return _waiting_story(subject, known.request, known, tuple(events))
    reasons: tuple[str, ...] = ()
    cure = ""
    ran = current_execution(replica)
    if ran is not None and ran.phase is Phase.BACKING_OFF:
        reasons, step = (f"{ran.reason}: {ran.message}",), "restarts it after the backoff"
        cure = f"read its output: holdfast logs {replica.metadata.namespace}/{replica.metadata.name}"
    elif now_at is Stage.RUNNING and ran is not None and ran.message:
        reasons = (f"{ran.reason}: {ran.message}",)
    if now_at is Stage.RESERVED and known.reservation is not None:
        nominated = known.reservation.status.phase is ReservationPhase.NOMINATED
        reason = Reason.WAITING_FOR_VICTIMS if nominated else Reason.WAITING_FOR_GANG
        owner = "release" if nominated else "authority"
        victims = ", ".join(known.reservation.spec.victims)
        step = f"evicts {victims}" if nominated else "binds it with enough members of its gang"
        reasons, cure = (f"{reason.value}: {reason.sentence}",), cluster_level_fix(reason, replica.metadata.namespace)
    return Timeline(subject, tuple(events), now_at.value, owner, step, reasons, suggested_fix=cure)


def _in_order(events: Iterable[TimelineEvent]) -> list[TimelineEvent]:
    """Sorts by time. An event without a time stays behind its predecessor."""
    last = ""
    timed: list[tuple[float, TimelineEvent]] = []
    for event in events:
        last = event.at or last
        timed.append((parse_time(last) if last else 0.0, event))
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


def request_timeline(request: SchedulingRequest, known: Evidence) -> Timeline:
    """Timeline of all pending members of a request."""
    count = request.status.pending
    subject = f"{count} replica{'s' if count != 1 else ''} of {request.metadata.namespace}/{request.spec.workload}"
    events = (TimelineEvent(request.metadata.creation_timestamp, "Queued", "replicate", f"{len(request.spec.members)} queued"),)
    return _waiting_story(subject, request, known, events)


def refusal_text(refusal: RefusalCount) -> str:
    """One reason with its node count, examples and message."""
    count = f"{refusal.nodes} node{'s' if refusal.nodes != 1 else ''} " if refusal.nodes else ""
    examples = f" (such as {', '.join(refusal.examples)})" if refusal.examples else ""
    says = refusal.message or _says(refusal.reason)
    return f"{count}{refusal.reason}{examples}: {says}"


def _waiting_story(subject: str, request: SchedulingRequest, known: Evidence, events: Sequence[TimelineEvent]) -> Timeline:
    status = request.status
    cure = _cure(request, known.suggested_fix)
    late = [c for c in status.conditions if is_condition_true((c,), c.type) and c.type.startswith("Deadline")]
    reasons = tuple(refusal_text(r) for r in status.reasons) + tuple(f"{c.reason}: {c.message}" for c in late)
    return Timeline(
        subject,
        tuple(events),
        "Queued",
        "scheduler",
        f"retries, after {status.attempts} failed attempts" if status.attempts else "has not tried yet",
        reasons,
        next_retry_at=status.next_retry_at,
        retry_on=status.retry_on,
        position=known.position or status.position,
        queue_length=known.queue_length,
        suggested_fix=cure,
    )


def _cure(request: SchedulingRequest, nearest: SuggestedFix | None) -> str:
    """A fix outside the nodes, if the reasons have one; else the smallest change on the nearest node; or both."""
    tenant = request.metadata.namespace
    beyond = [text for r in request.status.reasons if (text := cluster_level_fix(r.reason, tenant))]
    from_nodes = nearest.text if nearest is not None else ""
    if beyond and (not from_nodes or from_nodes.startswith("nothing")):
        return beyond[0]
    return "; or: ".join(dict.fromkeys([from_nodes, *beyond])) if from_nodes else ""


def _says(reason: str) -> str:
    try:
        return Reason(reason).sentence  # type: ignore[call-arg]
    except ValueError:
        return ""


def _decided(replica: Replica, decision: Decision | None) -> Iterable[TimelineEvent]:
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


def _placed(replica: Replica, known: Evidence) -> Iterable[TimelineEvent]:
    placed = replica.status.placement
    if placed.reserved_at and not placed.bound_at:
        waits = ""
        if known.reservation is not None and known.reservation.spec.victims:
            waits = f", waiting for the release of {', '.join(known.reservation.spec.victims)}"
        yield TimelineEvent(placed.reserved_at, "Reserved", "authority", f"on node {placed.node}{waits}")
    if placed.bound_at:
        again = f", attempt {placed.attempt}" if placed.attempt > 1 else ""
        yield TimelineEvent(placed.bound_at, "Bound", "authority", f"to node {placed.node} in zone {placed.zone}{again}")
    if placed.released_reason:
        yield TimelineEvent("", "Released", "authority", f"the previous attempt was released: {placed.released_reason}")


def _ran(replica: Replica) -> Iterable[TimelineEvent]:
    ran = current_execution(replica)
    if ran is None:
        return
    if ran.started_at:
        yield TimelineEvent(ran.started_at, "Starting", "agent", f"started, {ran.restarts} restarts")
    if ran.ready_since:
        ports = ",".join(str(port) for _, port in sorted(ran.ports.items()))
        yield TimelineEvent(ran.ready_since, "Ready", "agent", f"ready at {ran.address}{':' + ports if ports else ''}")
    if ran.last_exit is not None:
        left = ran.last_exit
        yield TimelineEvent(left.at, "Exited", "agent", f"{left.reason or 'ended'} {left.message}".strip())
    if ran.reason and not ran.ready:
        yield TimelineEvent("", ran.phase.value, "agent", f"{ran.reason}: {ran.message}")
    traffic = replica.status.traffic
    if traffic is not None and traffic.serving:
        yield TimelineEvent(traffic.since, "Serving", "serve", "its address is in the Endpoint")


def _left(replica: Replica) -> Iterable[TimelineEvent]:
    asked = replica.status.release
    if asked is not None:
        before = f"attempt {asked.attempt} was released: " if asked.attempt < replica.status.placement.attempt else ""
        text = f"{before}{asked.reason}: {asked.message}"
        yield TimelineEvent(asked.at, "Stopping", asked.requested_by or "release", text)
    contact = replica.status.contact
    if contact is not None and is_out_of_contact(replica):
        yield TimelineEvent(contact.since, "Unknown", "node-health", f"its node is out of contact: {contact.reason}")
