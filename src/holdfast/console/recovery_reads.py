"""Recoveries for the console: the clock against the objective, progress by workload, and the six questions."""

from __future__ import annotations

from typing import Any

from holdfast.console.answers import AnswerRow, EventRow
from holdfast.console.global_reads import GlobalReader, ObjectiveState, Proof, last_proof
from holdfast.console.region_details import event_row
from holdfast.console.viewer import Viewer
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.core import Event
from holdfast.model.errors import NotFound
from holdfast.model.override import Override
from holdfast.model.recovery import ObjectiveOutcome, Recovery, RecoveryPhase, live_rows, objective_outcome
from holdfast.model.recovery_budget import RecoveryBudget
from holdfast.model.region import Region
from holdfast.model.scheduler_policy import PolicyRevision
from holdfast.model.times import parse_time

# Workloads of a recovery listed at once, by priority. The rest is counted.
RECOVERY_WORKLOADS_MAX = 50
# Events of a recovery listed at once, the newest.
RECOVERY_EVENTS_MAX = 40


class RecoveryLine(AnswerRow, frozen=True, kw_only=True):
    name: str
    region: str
    zone: str
    cause: str
    phase: str
    started_at: str
    deadline_s: float
    served_s: float = -1.0
    """Seconds from the last contact until every workload served; negative while one does not."""
    met: bool | None = None
    workloads: int = 0
    serving: int = 0
    closed_at: str = ""


class BudgetLine(AnswerRow, frozen=True, kw_only=True):
    """Slots that a region holds for recovery: how many it should hold, holds, and has lent."""

    name: str
    region: str
    wanted: int
    admitted: int
    consumed: int
    tenants: tuple[str, ...]
    starts_per_second: float


class RecoveryPage(AnswerRow, frozen=True, kw_only=True):
    rows: tuple[RecoveryLine, ...]
    objective: ObjectiveState
    budgets: tuple[BudgetLine, ...]
    proofs: dict[str, Proof | None] = {}


class ClockMark(AnswerRow, frozen=True, kw_only=True):
    """One stage of the clock, in seconds after the last contact."""

    name: str
    seconds: float


class IncidentAnswer(AnswerRow, frozen=True, kw_only=True):
    question: str
    facts: tuple[str, ...]


class RecoveryDetail(AnswerRow, frozen=True, kw_only=True):
    line: RecoveryLine
    evidence: tuple[str, ...]
    marks: tuple[ClockMark, ...]
    elapsed_s: float
    workloads: tuple[Any, ...]
    remaining: tuple[str, ...]
    conditions: tuple[Any, ...]
    answers: tuple[IncidentAnswer, ...]
    events: tuple[EventRow, ...]
    next: str = ""


def recovery_list(reader: GlobalReader, viewer: Viewer, parameters: dict[str, str]) -> RecoveryPage:
    recoveries = sorted(reader.view.list(Recovery), key=lambda r: r.spec.started_at, reverse=True)
    proofs = {r.metadata.name: last_proof(recoveries, r.metadata.name) for r in reader.view.list(Region)}
    lines = tuple(line_of_recovery(r, reader.now_s) for r in recoveries[:100])
    return RecoveryPage(rows=lines, objective=reader.objective(), budgets=tuple(budget_lines(reader)), proofs=proofs)


def budget_lines(reader: GlobalReader) -> list[BudgetLine]:
    return [
        BudgetLine(
            name=b.metadata.name,
            region=b.spec.region,
            wanted=sum(s.count for s in b.spec.slot_shapes),
            admitted=b.status.admitted,
            consumed=b.status.consumed,
            tenants=b.spec.tenants,
            starts_per_second=b.spec.starts_per_second,
        )
        for b in reader.view.list(RecoveryBudget)
    ]


_MET = {ObjectiveOutcome.MET: True, ObjectiveOutcome.MISSED: False}


def line_of_recovery(item: Recovery, now_s: float) -> RecoveryLine:
    spec, status = item.spec, item.status
    served = (
        parse_time(status.clock.serving_at) - parse_time(spec.started_at)
        if status.clock.serving_at and spec.started_at
        else -1.0
    )
    return RecoveryLine(
        name=item.metadata.name,
        region=spec.region,
        zone=spec.zone,
        cause=spec.cause,
        phase=status.phase.value,
        started_at=spec.started_at,
        deadline_s=spec.deadline_seconds,
        served_s=served,
        met=_MET.get(objective_outcome(spec, status, now_s)),
        workloads=len(status.workloads),
        serving=sum(w.serving >= w.wanted for w in status.workloads),
        closed_at=status.closed_at,
    )


def recovery_detail(reader: GlobalReader, viewer: Viewer, parameters: dict[str, str]) -> RecoveryDetail:
    name = parameters.get("name", "")
    item = reader.view.get(Recovery, name)
    if item is None:
        raise NotFound(f"recovery {name}: not found")
    started_s = parse_time(item.spec.started_at) if item.spec.started_at else reader.now_s
    ended = item.status.clock.serving_at or item.status.closed_at
    return RecoveryDetail(
        line=line_of_recovery(item, reader.now_s),
        evidence=item.spec.evidence,
        marks=_marks(item, started_s),
        elapsed_s=max(0.0, (parse_time(ended) if ended else reader.now_s) - started_s),
        workloads=item.status.workloads[:RECOVERY_WORKLOADS_MAX],
        remaining=item.status.remaining,
        conditions=item.status.conditions,
        answers=tuple(_answers(reader, item, started_s)),
        events=tuple(_events(reader, item)),
        next=_next(item),
    )


def _marks(item: Recovery, started_s: float) -> tuple[ClockMark, ...]:
    clock = item.status.clock
    named = (
        ("lost", clock.detected_at),
        ("assigned", clock.assigned_at),
        ("bound", clock.bound_at),
        ("ready", clock.ready_at),
        ("serving", clock.serving_at),
        ("recovered", item.status.recovered_at),
        ("closed", item.status.closed_at),
    )
    return tuple(ClockMark(name=name, seconds=max(0.0, parse_time(at) - started_s)) for name, at in named if at)


def _next(item: Recovery) -> str:
    match item.status.phase:
        case RecoveryPhase.OPEN:
            late = [w for w in live_rows(item.status) if w.serving < w.wanted]
            if not late:
                return "recover closes the clock"
            one = late[0]
            return f"{one.tenant}/{one.workload} in {one.target or 'no region yet'}: {one.reason or 'starting'}"
        case RecoveryPhase.RECOVERED:
            return f"recover waits until region {item.spec.region} is healthy again"
        case RecoveryPhase.FAILING_BACK:
            return "recover returns the replicas to the region, and gives back what it borrowed"
        case _:
            return "nothing: it is closed"


def _events(reader: GlobalReader, item: Recovery) -> list[EventRow]:
    names = {item.metadata.name, item.spec.region, *(w.workload for w in item.status.workloads)}
    found = [
        e
        for e in reader.view.list(Event)
        if e.involved_object.name in names and (e.last_timestamp or e.event_time or "") >= item.spec.started_at[:19]
    ]
    found.sort(key=lambda e: e.last_timestamp or e.event_time or "")
    return [event_row(e, "global") for e in found[:RECOVERY_EVENTS_MAX]]


def _answers(reader: GlobalReader, item: Recovery, started_s: float) -> list[IncidentAnswer]:
    """The six questions of a drill's report, from what the objects record."""
    status, region = item.status, item.spec.region
    lent = [a for a in reader.view.list(Assignment) if a.spec.purpose is Purpose.RECOVERY]
    suspended = [a for a in reader.view.list(Assignment) if a.spec.suspended and a.spec.region == region]
    targets = sorted({w.target for w in status.workloads if w.target})
    changed = [
        f"recovery replicas of {w.tenant}/{w.workload} assigned to {w.target}: {w.recovery_replicas}"
        for w in status.workloads
        if w.recovery_replicas
    ]
    if suspended:
        changed.append(f"assignments of {region} that are suspended: {len(suspended)}")
    if lent:
        changed.append(f"recovery assignments that exist now: {len(lent)}")
    marks = {m.name: m.seconds for m in _marks(item, started_s)}
    first = [f"region-health found {region} lost at +{marks['lost']:.1f} s"] if "lost" in marks else []
    if "assigned" in marks:
        first.append(f"recover had assigned every workload at +{marks['assigned']:.1f} s")
    progress = [
        f"{w.tenant}/{w.workload}: assigned {w.assigned}, bound {w.bound}, ready {w.ready}, serving {w.serving}"
        f" of {w.wanted}"
        for w in status.workloads[:8]
    ]
    line = line_of_recovery(item, reader.now_s)
    held = [f"{line.serving} of {line.workloads} workloads serve their minimum in {', '.join(targets) or 'no region'}"]
    if line.met is not None:
        verb = "met" if line.met else "missed"
        took = f"{line.served_s:.1f} s" if line.served_s >= 0 else "some workload did not serve elsewhere"
        held.append(f"the objective of {line.deadline_s:.0f} s was {verb}: {took}")
    seen = [f"evidence of the loss: {text}" for text in item.spec.evidence[:6]]
    path = [_next(item), *(f"still to return: {text}" for text in status.remaining[:6])]
    none = ("nothing was recorded",)
    return [
        IncidentAnswer(question="What desired state changed?", facts=tuple(changed) or none),
        IncidentAnswer(question="Which controller acted first?", facts=tuple(first) or none),
        IncidentAnswer(question="What partial progress was recorded?", facts=tuple(progress) or none),
        IncidentAnswer(question="Which promise held?", facts=tuple(held)),
        IncidentAnswer(question="Which telemetry proves it?", facts=tuple(seen) or none),
        IncidentAnswer(question="What is the repair or rollback path?", facts=tuple(path)),
    ]


class NamedMoment(AnswerRow, frozen=True, kw_only=True):
    """A moment worth looking at."""

    at_s: float
    name: str


# Moments that are named on the slider, the newest.
MOMENTS_MAX = 20


def moments(reader: GlobalReader, viewer: Viewer, oldest_s: float) -> list[NamedMoment]:
    """Losses and their ends, and new policy revisions and overrides, for those who may see them all."""
    if viewer.tenants is not None:
        return []
    found: list[tuple[str, str]] = []
    for recovery in reader.view.list(Recovery):
        what = recovery.spec.zone or recovery.spec.region
        found.append((recovery.spec.started_at, f"last contact with {what}"))
        found.append((recovery.status.clock.serving_at, f"work of {what} serves again"))
    found += [(r.metadata.creation_timestamp, f"policy {r.metadata.name}") for r in reader.view.list(PolicyRevision)]
    found += [(o.metadata.creation_timestamp, f"override {o.spec.kind}") for o in reader.view.list(Override)]
    named = [NamedMoment(at_s=parse_time(at), name=name) for at, name in found if at]
    named = [m for m in named if m.at_s >= oldest_s]
    return sorted(named, key=lambda m: m.at_s, reverse=True)[:MOMENTS_MAX]
