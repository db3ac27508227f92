"""Timeline of one replica, or of a request's pending members: events in order, current stage and next owner.

Pure: built from the objects alone, so that the CLI, the console and tests show the same timeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.flow.why_not import Cure, cure_beyond_nodes
from holdfast.model.binding import Binding, Reservation, ReservationPhase
from holdfast.model.decision import Decision, DecisionEntry
from holdfast.model.lifecycle import Stage, current_execution, stage, unheard
from holdfast.model.meta import is_true
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


class Event(msgspec.Struct, frozen=True):
    """One event, with its time if that is recorded."""

    at: str
    stage: str
    owner: str
    text: str


class Story(msgspec.Struct, frozen=True, rename="camel"):
    """`look_again` is the time of the next scheduled retry; an event in `wake_on` triggers it earlier."""

    subject: str
    events: tuple[Event, ...]
    stands: str
    next_owner: str
    next_step: str
    reasons: tuple[str, ...] = ()
    look_again: str = ""
    wake_on: tuple[str, ...] = ()
    position: int = 0
    waiting: int = 0
    cure: str = ""


class Evidence(msgspec.Struct, frozen=True):
    """The objects a timeline is built from; each may be missing."""

    request: SchedulingRequest | None = None
    decision: Decision | None = None
    reservation: Reservation | None = None
    binding: Binding | None = None
    cure: Cure | None = None
    position: int = 0
    waiting: int = 0


def replica_story(replica: Replica, known: Evidence) -> Story:
    now_at = stage(replica)
    owner, step = _NEXT[now_at]
    events = [
        Event(
            replica.metadata.creation_timestamp, "Queued", "replicate",
            f"created for {replica.spec.assignment}, revision {replica.spec.revision}, rank {replica.spec.rank}",
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
        reasons, cure = (f"{reason.value}: {reason.says}",), cure_beyond_nodes(reason, replica.metadata.namespace)
    return Story(subject, tuple(events), now_at.value, owner, step, reasons, cure=cure)


def _in_order(events: Iterable[Event]) -> list[Event]:
    """Sorts by time. An event without a time stays behind its predecessor."""
    last = ""
    timed: list[tuple[float, Event]] = []
    for event in events:
        last = event.at or last
        timed.append((parse_time(last) if last else 0.0, event))
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


def request_story(request: SchedulingRequest, known: Evidence) -> Story:
    """Timeline of all pending members of a request."""
    count = request.status.pending
    subject = f"{count} replica{'s' if count != 1 else ''} of {request.metadata.namespace}/{request.spec.workload}"
    events = (Event(request.metadata.creation_timestamp, "Queued", "replicate", f"{len(request.spec.members)} queued"),)
    return _waiting_story(subject, request, known, events)


def reason_text(refusal: RefusalCount) -> str:
    """One reason with its node count, examples and message."""
    count = f"{refusal.nodes} node{'s' if refusal.nodes != 1 else ''} " if refusal.nodes else ""
    examples = f" (such as {', '.join(refusal.examples)})" if refusal.examples else ""
    says = refusal.message or _says(refusal.reason)
    return f"{count}{refusal.reason}{examples}: {says}"


def _waiting_story(subject: str, request: SchedulingRequest, known: Evidence, events: Sequence[Event]) -> Story:
    status = request.status
    cure = _cure(request, known.cure)
    late = [c for c in status.conditions if is_true((c,), c.type) and c.type.startswith("Deadline")]
    reasons = tuple(reason_text(r) for r in status.reasons) + tuple(f"{c.reason}: {c.message}" for c in late)
    return Story(
        subject,
        tuple(events),
        "Queued",
        "scheduler",
        f"retries, after {status.attempts} failed attempts" if status.attempts else "has not tried yet",
        reasons,
        look_again=status.next_try_at,
        wake_on=status.wake_on,
        position=known.position or status.position,
        waiting=known.waiting,
        cure=cure,
    )


def _cure(request: SchedulingRequest, nearest: Cure | None) -> str:
    """A fix outside the nodes, if the reasons have one; else the smallest change on the nearest node; or both."""
    tenant = request.metadata.namespace
    beyond = [text for r in request.status.reasons if (text := cure_beyond_nodes(r.reason, tenant))]
    from_nodes = nearest.text if nearest is not None else ""
    if beyond and (not from_nodes or from_nodes.startswith("nothing")):
        return beyond[0]
    return "; or: ".join(dict.fromkeys([from_nodes, *beyond])) if from_nodes else ""


def _says(reason: str) -> str:
    try:
        return Reason(reason).says  # type: ignore[call-arg]
    except ValueError:
        return ""


def _decided(replica: Replica, decision: Decision | None) -> Iterable[Event]:
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
    yield Event(spec.decided_at, "Decided", "scheduler", f"{text}; decision {decision.metadata.name}")
    if entry.result == "Rejected":
        yield Event(spec.decided_at, "Refused", "authority", f"{entry.reason}: {entry.message}")


def _why_chosen(entry: DecisionEntry) -> str:
    if entry.victims:
        return f", preempting {', '.join(entry.victims)}"
    parts = ", ".join(f"{s.name} {s.value} x {s.weight}" for s in entry.scores[:_SHOWN_SCORES])
    second = f", runner-up {entry.runner_up} with {entry.runner_up_score}" if entry.runner_up else ""
    return f" with score {entry.score} ({parts}){second}"


def _placed(replica: Replica, known: Evidence) -> Iterable[Event]:
    placed = replica.status.placement
    if placed.reserved_at and not placed.bound_at:
        waits = ""
        if known.reservation is not None and known.reservation.spec.victims:
            waits = f", waiting for the release of {', '.join(known.reservation.spec.victims)}"
        yield Event(placed.reserved_at, "Reserved", "authority", f"on node {placed.node}{waits}")
    if placed.bound_at:
        again = f", attempt {placed.attempt}" if placed.attempt > 1 else ""
        yield Event(placed.bound_at, "Bound", "authority", f"to node {placed.node} in zone {placed.zone}{again}")
    if placed.released_reason:
        yield Event("", "Released", "authority", f"the previous attempt was released: {placed.released_reason}")


def _ran(replica: Replica) -> Iterable[Event]:
    ran = current_execution(replica)
    if ran is None:
        return
    if ran.started_at:
        yield Event(ran.started_at, "Starting", "agent", f"started, {ran.restarts} restarts")
    if ran.ready_since:
        ports = ",".join(str(port) for _, port in sorted(ran.ports.items()))
        yield Event(ran.ready_since, "Ready", "agent", f"ready at {ran.address}{':' + ports if ports else ''}")
    if ran.last_exit is not None:
        left = ran.last_exit
        yield Event(left.at, "Exited", "agent", f"{left.reason or 'ended'} {left.message}".strip())
    if ran.reason and not ran.ready:
        yield Event("", ran.phase.value, "agent", f"{ran.reason}: {ran.message}")
    traffic = replica.status.traffic
    if traffic is not None and traffic.serving:
        yield Event(traffic.since, "Serving", "serve", "its address is in the Endpoint")


def _left(replica: Replica) -> Iterable[Event]:
    asked = replica.status.release
    if asked is not None:
        before = f"attempt {asked.attempt} was released: " if asked.attempt < replica.status.placement.attempt else ""
        text = f"{before}{asked.reason}: {asked.message}"
        yield Event(asked.at, "Stopping", asked.requested_by or "release", text)
    contact = replica.status.contact
    if contact is not None and unheard(replica):
        yield Event(contact.since, "Unknown", "node-health", f"its node is out of contact: {contact.reason}")
