"""Workloads for the console: the list with what needs attention first, and one workload with its parts."""

from __future__ import annotations

from typing import Any

from holdfast.console.answers import AnswerRow, DecisionLine, EventRow, PendingWait, RegionWorkload, ReplicaRow
from holdfast.console.global_reads import GlobalReader
from holdfast.console.region_details import REPLICAS_PAGE
from holdfast.console.viewer import Viewer
from holdfast.fleet.rollout import can_roll_back, rollout_waves
from holdfast.model.assignment import Assignment, Purpose
from holdfast.model.errors import NotFound
from holdfast.model.lifecycle import Stage
from holdfast.model.newest_template import UnservedTemplate, undo_revision, undo_template, unserved_template
from holdfast.model.recovery import Recovery, is_open, live_rows
from holdfast.model.workload import Workload, WorkloadType, is_indexed, wanted_replicas

# Workloads on one page at most.
WORKLOADS_PAGE_MAX = 200
# Failures of a job array that its page lists.
INDEX_FAILURES_MAX = 50


class WorkloadLine(AnswerRow, frozen=True, kw_only=True):
    """One workload in the list. `state` is ok, prog, wait or bad."""

    tenant: str
    name: str
    type: str
    priority: str
    wanted: int
    assigned: int
    bound: int
    ready: int
    serving: int
    succeeded: int
    failed: int
    regions: tuple[str, ...]
    state: str
    reason: str = ""
    message: str = ""
    rollout: str = ""
    critical: bool = False
    backed: bool | None = None
    created_at: str = ""


class WorkloadPage(AnswerRow, frozen=True, kw_only=True):
    rows: tuple[WorkloadLine, ...]
    total: int
    matching: int
    next_offset: int = 0
    counts: dict[str, int] = {}
    tenants: tuple[str, ...] = ()


class AssignmentLine(AnswerRow, frozen=True, kw_only=True):
    name: str
    region: str
    purpose: str
    replicas: int
    queued: int
    bound: int
    ready: int
    serving: int
    epoch: int
    observed_epoch: int
    suspended: bool
    reason: str
    revision: str
    pending: tuple[Any, ...] = ()
    failing: tuple[Any, ...] = ()
    as_of: float = 0.0
    problem: str = ""


class Sentence(AnswerRow, frozen=True, kw_only=True):
    """Where the workload stands, why, and who acts next. `next_at` is the time of the next try, if one is planned."""

    state: str
    why: str = ""
    next: str = ""
    next_at: str = ""


class Undo(AnswerRow, frozen=True, kw_only=True):
    """The revision that an undo returns to, and the image of its template as the spec names it."""

    revision: str
    image: str = ""


class WorkloadDetail(AnswerRow, frozen=True, kw_only=True):
    line: WorkloadLine
    sentence: Sentence
    generation: int
    observed_generation: int
    revision: str
    command: tuple[str, ...]
    conditions: tuple[Any, ...]
    assignments: tuple[AssignmentLine, ...]
    replicas: tuple[ReplicaRow, ...]
    total_replicas: int
    next_offset: int
    waits: tuple[PendingWait, ...]
    decisions: tuple[DecisionLine, ...]
    events: tuple[EventRow, ...]
    rollout: Any = None
    rollout_spec: Any = None
    rolls_back: bool = False
    """Whether the rollout returns to the last good revision at its deadline."""
    undo: Undo | None = None
    waves: tuple[tuple[str, ...], ...] = ()
    """Regions by the wave of the rollout in which they change."""
    recovery: Any = None
    backing: Any = None
    disruption: Any = None
    scale: Any = None
    usual_ready_s: float = 0.0
    array: Any = None
    """Of a job array: completions, the indexes that succeeded and failed as ranges, and the newest failures."""


def line_of(workload: Workload) -> WorkloadLine:
    status, spec, summary = workload.status, workload.spec, workload.status.summary
    state, reason, message = _state(workload)
    return WorkloadLine(
        tenant=workload.metadata.namespace,
        name=workload.metadata.name,
        type=spec.type.value,
        priority=spec.priority_class_name,
        wanted=wanted_replicas(workload),
        assigned=summary.assigned,
        bound=summary.bound,
        ready=summary.ready,
        serving=summary.serving,
        succeeded=summary.succeeded,
        failed=summary.failed,
        regions=tuple(dict.fromkeys(r.region for r in summary.regions if r.assigned)),
        state=state,
        reason=reason,
        message=message,
        rollout=status.rollout.phase if status.rollout is not None else "",
        critical=spec.recovery is not None,
        backed=status.backing.backed if status.backing is not None else None,
        created_at=workload.metadata.creation_timestamp,
    )


def _state(workload: Workload) -> tuple[str, str, str]:
    """How urgent a workload is, with the reason and message of the condition that says so."""
    status = workload.status
    wanted, summary = wanted_replicas(workload), status.summary
    if workload.metadata.terminating:
        return "prog", "Terminating", "it is being deleted"
    failed = next((c for c in status.conditions if c.type == "Failed" and c.status == "True"), None)
    if failed is not None:
        return "bad", failed.reason, failed.message
    if workload.spec.type is WorkloadType.BATCH:
        done = workload.spec.batch is not None and summary.succeeded >= workload.spec.batch.completions
        if done:
            return "ok", "Completed", f"{summary.succeeded} of {summary.succeeded} completed"
        reason = next((r.pending_reason for r in summary.regions if r.pending_reason), "")
        return ("wait", reason, "") if reason and summary.bound < wanted else ("prog", "Running", "")
    unserved = unserved_template(workload)
    if summary.serving >= wanted:
        if unserved is None:
            return "ok", "", ""
        return "bad" if unserved.needs_change else "prog", unserved.reason, unserved.message
    serving = next((c for c in status.conditions if c.type == "Serving"), None)
    if failing := next((r.failing_reason for r in summary.regions if r.failing_reason), ""):
        return "bad", failing, serving.message if serving is not None else ""
    if unserved is not None and unserved.needs_change:
        return "bad", unserved.reason, unserved.message
    reason = next((r.pending_reason for r in summary.regions if r.pending_reason), "")
    if reason:
        return "wait", reason, serving.message if serving is not None else ""
    return "prog", serving.reason if serving is not None else "", serving.message if serving is not None else ""


def workload_list(reader: GlobalReader, viewer: Viewer, parameters: dict[str, str]) -> WorkloadPage:
    lines = [line_of(w) for w in reader.view.list(Workload) if viewer.sees(w.metadata.namespace)]
    text, state, tenant = parameters.get("text", "").lower(), parameters.get("state", ""), parameters.get("tenant", "")
    matching = [
        line
        for line in lines
        if (not text or text in f"{line.tenant}/{line.name}")
        and (not tenant or line.tenant == tenant)
        and (not state or line.state == state)
    ]
    urgency = {"bad": 0, "wait": 1, "prog": 2, "ok": 3}
    matching.sort(key=lambda line: (urgency[line.state], not line.critical, line.tenant, line.name))
    start, count = number(parameters, "offset"), number(parameters, "limit", 50, WORKLOADS_PAGE_MAX)
    rows = tuple(matching[start : start + count])
    more = start + len(rows)
    return WorkloadPage(
        rows=rows,
        total=len(lines),
        matching=len(matching),
        next_offset=more if more < len(matching) else 0,
        counts={name: sum(line.state == name for line in lines) for name in urgency},
        tenants=tuple(sorted({line.tenant for line in lines})),
    )


def number(parameters: dict[str, str], name: str, default: int = 0, most: int = 1_000_000) -> int:
    text = parameters.get(name, "")
    return min(most, int(text)) if text.isdigit() and len(text) < 10 else default


async def workload_detail(reader: GlobalReader, viewer: Viewer, parameters: dict[str, str]) -> WorkloadDetail:
    tenant, name = parameters.get("tenant", ""), parameters.get("name", "")
    viewer.require_tenant(tenant, "workloads")
    workload = reader.view.get(Workload, name, tenant)
    if workload is None:
        raise NotFound(f"workload {tenant}/{name}: not found")
    assignments = [a for a in reader.view.by(Assignment, "workload", f"{tenant}/{name}") if viewer.sees(tenant)]
    regions = sorted({a.spec.region for a in assignments})
    offset = number(parameters, "offset")
    answers = await reader.hub.ask_all(regions, "workload", viewer, tenant=tenant, workload=name, offset=str(offset))
    found = {region: reader.part(known, RegionWorkload) or RegionWorkload() for region, known in answers.items()}
    total = sum(p.total for p in found.values())
    waits = tuple(w for p in found.values() for w in p.waits)
    replicas = tuple(r for p in found.values() for r in p.replicas)
    events = [*(e for p in found.values() for e in p.events), *reader.changes(viewer, tenant)]
    events = [e for e in events if _is_about(e, name)]
    events.sort(key=lambda e: e.at, reverse=True)
    lines = tuple(
        _assignment(a, answers[a.spec.region].answer, answers[a.spec.region].problem)
        for a in sorted(assignments, key=lambda a: (a.spec.region, a.spec.purpose.value))
    )
    status = workload.status
    usual = max((p.usual_ready_s for p in found.values()), default=0.0)
    return WorkloadDetail(
        line=line_of(workload),
        sentence=sentence(reader, workload, waits, replicas, usual),
        generation=workload.metadata.generation,
        observed_generation=status.observed_generation,
        revision=status.rollout.revision if status.rollout is not None else "",
        command=tuple(workload.spec.template.command),
        conditions=status.conditions,
        assignments=lines,
        replicas=replicas,
        total_replicas=total,
        next_offset=offset + REPLICAS_PAGE if any(p.total > offset + REPLICAS_PAGE for p in found.values()) else 0,
        waits=waits,
        decisions=tuple(sorted((d for p in found.values() for d in p.decisions), key=lambda d: d.at, reverse=True)),
        events=tuple(events[:40]),
        rollout=_rollout_without_history(workload),
        rollout_spec=workload.spec.rollout,
        rolls_back=status.rollout is not None and can_roll_back(workload, status.rollout),
        undo=_undo(workload),
        waves=rollout_waves(workload, [a.region for a in lines if a.purpose == Purpose.NORMAL.value]),
        recovery=workload.spec.recovery,
        backing=status.backing,
        disruption=workload.spec.disruption,
        scale=status.scale,
        usual_ready_s=usual,
        array=_array(workload),
    )


def _undo(workload: Workload) -> Undo | None:
    revision = undo_revision(workload)
    template = undo_template(workload, revision)
    return Undo(revision=revision, image=template.image) if template is not None else None


def _array(workload: Workload) -> dict[str, Any] | None:
    batch, summary = workload.spec.batch, workload.status.summary
    if batch is None or not is_indexed(batch):
        return None
    return {
        "completions": batch.completions,
        "succeeded": summary.succeeded_indexes,
        "failed": summary.failed_indexes,
        "failures": summary.index_failures[:INDEX_FAILURES_MAX],
    }


def _rollout_without_history(workload: Workload) -> Any:
    """The rollout, with earlier revisions as names: templates may be large."""
    rollout = workload.status.rollout
    if rollout is None:
        return None
    return {
        "revision": rollout.revision,
        "previousRevision": rollout.previous_revision,
        "lastGoodRevision": rollout.last_good_revision,
        "phase": rollout.phase,
        "message": rollout.message,
        "regions": rollout.regions,
        "serving": rollout.serving,
        "progressedAt": rollout.progressed_at,
        "unreachableRegions": rollout.unreachable_regions,
        "history": [{"revision": r.revision, "at": r.at, "outcome": r.outcome} for r in rollout.history],
    }


def _is_about(event: EventRow, workload: str) -> bool:
    name = event.object.partition("/")[2]
    return name == workload or name.startswith((f"{workload}-", f"{workload}."))


def _assignment(item: Assignment, answer: Any, problem: str) -> AssignmentLine:
    spec, status = item.spec, item.status
    return AssignmentLine(
        name=item.metadata.name,
        region=spec.region,
        purpose=spec.purpose.value,
        replicas=spec.replicas,
        queued=status.queued,
        bound=status.bound,
        ready=status.ready,
        serving=status.serving,
        epoch=spec.epoch,
        observed_epoch=status.observed_epoch,
        suspended=spec.suspended,
        reason=spec.reason,
        revision=spec.revision,
        pending=status.pending,
        failing=status.failing,
        as_of=answer.as_of if answer is not None else 0.0,
        problem=problem,
    )


def sentence(
    reader: GlobalReader,
    workload: Workload,
    waits: tuple[PendingWait, ...],
    replicas: tuple[ReplicaRow, ...],
    usual: float,
) -> Sentence:
    """One to three sentences, in the words of `holdfast explain`."""
    line = line_of(workload)
    if line.type == WorkloadType.BATCH:
        state = (
            f"{line.succeeded} of {workload.spec.batch.completions if workload.spec.batch else line.wanted} completed."
        )
        if line.state == "bad":
            why = f"{line.reason}: {line.message.rstrip('.')}."
            return Sentence(state=state, why=why, next="nothing: it has failed, and starts no further replica")
    else:
        state = f"{line.serving} of {line.wanted} replicas serve."
    unserved = unserved_template(workload)
    if unserved is not None and unserved.needs_change and not waits:
        return _unserved(state, unserved)
    if waits:
        wait = waits[0]
        count = sum(w.replicas for w in waits)
        verb = "waits" if count == 1 else "wait"
        why = f"{count} {verb}: {wait.reason}: {wait.message.rstrip('.')}."
        after = "after an event or at the next retry" if wait.retry_on else "at the next retry"
        return Sentence(state=state, why=why, next=f"the scheduler tries again {after}", next_at=wait.next_retry_at)
    moving = [r for r in replicas if r.stage not in ("Serving", "Succeeded", "Released")]
    recovering = [r for r in reader.view.list(Recovery) if is_open(r) and _is_in(r, workload)]
    # A recovery explains the replicas whose state is unknown; without one, they speak for themselves.
    moving = [r for r in moving if r.stage != Stage.UNKNOWN] or ([] if recovering else moving)
    if moving:
        one = max(moving, key=lambda r: r.since)
        where = f" on {one.node}" if one.node else ""
        trouble = f" {one.reason}: {one.message.rstrip('.')}." if one.reason and one.message else ""
        usually = f", usually within {usual:.1f} s" if usual and one.stage in ("Starting", "Running") else ""
        return Sentence(
            state=state,
            why=f"{one.name} is {one.stage}{where}.{trouble}",
            next=f"{one.next_owner} {one.next_step}{usually}",
        )
    if recovering:
        phase = recovering[0].status.phase
        why = f"Region {recovering[0].spec.region} is lost; the recovery is {phase}."
        return Sentence(state=state, why=why, next="recover returns the replicas when the region is healthy again")
    if unserved is not None:
        return _unserved(state, unserved)
    if line.type == WorkloadType.BATCH:
        return Sentence(
            state=state, why="", next="nothing: it is complete" if line.state == "ok" else "the agent reports"
        )
    return Sentence(state=state, why="Nothing is on its way.", next="nothing to do")


def _unserved(state: str, unserved: UnservedTemplate) -> Sentence:
    why = f"{unserved.reason}: {unserved.message.rstrip('.')}."
    return Sentence(state=state, why=why, next=unserved.next_step)


def _is_in(recovery: Recovery, workload: Workload) -> bool:
    key = (workload.metadata.namespace, workload.metadata.name)
    return any((w.tenant, w.workload) == key for w in live_rows(recovery.status))
