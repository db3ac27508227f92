"""MaintenanceWindows: occurrences over time zones, the Override of each, and who it keeps away."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest
from tests.expected import of_type, only, present
from tests.factories import cache_of, meta, region, workload

from holdfast.controllers.cache import Cache
from holdfast.fleet import assign, maintenance
from holdfast.fleet.maintenance import occurrence
from holdfast.foundation.time_zones import find_zone
from holdfast.model.maintenance_window import (
    MaintenanceWindow,
    MaintenanceWindowSpec,
    MaintenanceWindowStatus,
    validate_maintenance_window,
)
from holdfast.model.meta import Key, Object
from holdfast.model.node import Node, NodeSpec
from holdfast.model.override import (
    ACTIVE,
    Override,
    OverrideStatus,
    avoidance_of,
    maintenance_of_node,
    maintenance_of_region,
    stays_until_s,
)
from holdfast.model.reasons import Reason
from holdfast.model.template import RestartPolicy, Template
from holdfast.model.times import micro_text, parse_time, seconds_text
from holdfast.model.workload import Batch, WorkloadType
from holdfast.model.writes import Create, Outcome, SetStatus, Update
from holdfast.scheduling.eviction import maintenance_drain

START = parse_time("2026-12-01T22:00:00Z")
HOUR = 3600.0
KEY = Key("", "kernels")
decide = maintenance.decider(find_zone)


def window(*, phase: str = "", override: str = "", **spec: Any) -> MaintenanceWindow:
    given = {
        "region": "x",
        "start": "2026-12-01T22:00",
        "end": "2026-12-02T00:00",
        "reason": "new kernels",
        "owner": "infra",
        **spec,
    }
    status = MaintenanceWindowStatus(phase=phase, override=override)
    return MaintenanceWindow(meta("kernels", generation=1), MaintenanceWindowSpec(**given), status)


def created(outcome: Outcome) -> Override:
    """The Override that the outcome creates, as it is once the override controller has activated it."""
    made = of_type(only([w for w in outcome.writes if isinstance(w, Create)], Create).object, Override)
    ends = START + 2 * HOUR
    return msgspec.structs.replace(
        made, metadata=meta(made.metadata.name), status=OverrideStatus(phase=ACTIVE, expires_at=micro_text(ends))
    )


def phase_of(outcome: Outcome) -> str:
    return str(only([w for w in outcome.writes if isinstance(w, SetStatus)], SetStatus).blocks["phase"])


def announced(**spec: Any) -> Override:
    return created(decide(KEY, cache_of(window(**spec)), START - HOUR / 2))


def test_window_is_scheduled_announced_active_and_ended() -> None:
    view = cache_of(window())
    assert phase_of(decide(KEY, view, START - 2 * HOUR)) == "Scheduled"
    early = decide(KEY, view, START - HOUR / 2)
    assert phase_of(early) == "Notice"
    override = created(early)
    assert override.spec.ttl_seconds == 2.5 * HOUR
    assert present(override.spec.maintenance).starts_at == micro_text(START)
    later = cache_of(window(phase="Notice", override=override.metadata.name), override)
    running = decide(KEY, later, START)
    assert phase_of(running) == "Active" and not [w for w in running.writes if isinstance(w, Create)]
    assert phase_of(decide(KEY, later, START + 2 * HOUR)) == "Ended"


def test_changed_suspended_or_deleted_window_revokes_its_override() -> None:
    override = announced()
    moved = msgspec.structs.replace(window(), metadata=meta("kernels", generation=2))
    cases: tuple[tuple[Object, ...], ...] = ((), (window(suspend=True),), (moved,))
    for objects in cases:
        outcome = decide(KEY, cache_of(*objects, override), START + 1)
        update = only([w for w in outcome.writes if isinstance(w, Update)], Update)
        assert of_type(update.object, Override).spec.revoked
    assert KEY in maintenance.keys(cache_of(override))


def test_occurrence_that_an_operator_revoked_does_not_come_back() -> None:
    override = announced()
    revoked = msgspec.structs.replace(override, spec=msgspec.structs.replace(override.spec, revoked=True))
    outcome = decide(KEY, cache_of(window(), revoked), START + 1)
    assert phase_of(outcome) == "Ended" and not [w for w in outcome.writes if isinstance(w, Create)]
    gone = window(phase="Ended", override=override.metadata.name)
    assert not [w for w in decide(KEY, cache_of(gone), START + 60).writes if isinstance(w, Create)]


def test_recurring_window_keeps_its_local_time_when_clocks_change() -> None:
    spec = window(
        start="2026-10-24T22:00", end="2026-10-24T23:00", time_zone="Europe/Berlin", recurrence="0 22 * * *"
    ).spec
    zone = present(find_zone("Europe/Berlin"))
    first = present(occurrence(spec, zone, parse_time("2026-10-24T12:00:00Z")))
    second = present(occurrence(spec, zone, parse_time("2026-10-24T21:30:00Z")))
    assert [seconds_text(o.starts_s) for o in (first, second)] == ["2026-10-24T20:00:00Z", "2026-10-25T21:00:00Z"]
    running = present(occurrence(spec, zone, second.starts_s + 600))
    assert running == second
    assert occurrence(window().spec, zone, START + 3 * HOUR) is None


def test_unknown_time_zone_is_said_and_has_no_effect() -> None:
    outcome = decide(KEY, cache_of(window(time_zone="Mars/Olympus")), START)
    status = only(outcome.writes, SetStatus)
    assert status.conditions[0].reason == Reason.SCHEDULE_UNUSABLE and "Mars/Olympus" in status.conditions[0].message


SERVICE, JOB = Template(), Template(restart_policy=RestartPolicy.ON_FAILURE)


def test_only_work_that_cannot_finish_or_move_is_kept_away_before_the_start() -> None:
    override, now = announced(), START - 600

    def refused(template: Template, max_unavailable: int, active_until: str, at_s: float) -> bool:
        until_s = stays_until_s(template, max_unavailable, active_until, at_s)
        found = avoidance_of((override,), region="x", zone="a", tenant="t", workload="w", stays_until_s=until_s)
        return found is not None

    assert not refused(SERVICE, 1, "", now), "a service that can be moved"
    assert refused(SERVICE, 0, "", now), "a service that its budget never lets go"
    assert refused(JOB, 1, "", now), "a job of unknown length"
    assert not refused(JOB, 1, micro_text(START - 1), now), "a job that has ended by then"
    assert refused(JOB, 1, micro_text(START + 1), now), "a job that may go on"
    assert refused(SERVICE, 1, "", START), "everything, from the start on"
    assert stays_until_s(JOB, 1, "", now) == inf


@pytest.mark.parametrize(
    ("batch", "accepted"),
    [(Batch(), False), (Batch(active_deadline_seconds=300.0), True), (Batch(active_deadline_seconds=900.0), False)],
    ids=["of unknown length", "ends before the start", "may go on"],
)
def test_region_before_its_maintenance_accepts_only_batches_that_end_before_the_start(
    batch: Batch, *, accepted: bool
) -> None:
    job = workload(type=WorkloadType.BATCH, batch=batch, template=JOB)
    found = assign.accepts_new_replicas(job, region("x"), (announced(),), START - 600)
    assert found is accepted


def test_window_of_nodes_closes_neither_zone_nor_region() -> None:
    override = announced(nodes=("n1", "n2"))
    place: dict[str, Any] = {"region": "x", "zone": "a", "tenant": "t", "workload": "w", "stays_until_s": inf}
    assert avoidance_of((override,), **place, node="n1") is override
    assert avoidance_of((override,), **place, node="n3") is None
    assert avoidance_of((override,), **place) is None
    assert maintenance_of_region((override,), "x", START) is None
    assert maintenance_of_region((announced(),), "x", START) is not None
    assert maintenance_of_region((announced(),), "x", START - 1) is None
    assert maintenance_of_node((override,), region="x", zone="a", node="n2", now=START) is override


def node(name: str = "n1", zone: str = "a", *, drain: bool = False, mark: str = "") -> Node:
    annotations = {maintenance_drain.ANNOTATION_MAINTENANCE: mark} if mark else {}
    return Node(meta(name, annotations=annotations), NodeSpec(zone=zone, drain=drain))


def drained(view: Cache, at_s: float, name: str = "n1") -> tuple[bool, str] | None:
    """What the region's controller writes: drain and mark; None if it writes nothing."""
    writes = maintenance_drain.decider("x")(Key("", name), view, at_s).writes
    if not writes:
        return None
    item = of_type(only(writes, Update).object, Node)
    return item.spec.drain, item.metadata.annotations.get(maintenance_drain.ANNOTATION_MAINTENANCE, "")


def test_nodes_are_drained_from_start_to_end_and_then_returned() -> None:
    override = announced(zone="a")
    name = override.metadata.name
    assert drained(cache_of(node(), override), START - 1) is None
    assert drained(cache_of(node(), override), START) == (True, name)
    assert drained(cache_of(node(zone="b"), override), START) is None
    assert drained(cache_of(node(drain=True, mark=name), override), START + 60) is None
    assert drained(cache_of(node(drain=True, mark=name), override), START + 2 * HOUR) == (False, "")
    assert drained(cache_of(node(drain=True, mark=name)), START) == (False, ""), "the window was deleted"
    wait_s = maintenance_drain.decider("x")(Key("", "n1"), cache_of(node(), override), START - 10).requeue_after_s
    assert present(wait_s) == pytest.approx(10, abs=0.1)


def test_drains_and_uncordons_by_operators_are_left_alone() -> None:
    override = announced()
    assert drained(cache_of(node(drain=True), override), START) is None
    assert drained(cache_of(node(drain=True), override), START + 2 * HOUR) is None
    assert drained(cache_of(node(mark=override.metadata.name), override), START + 60) is None
    assert drained(cache_of(node(), announced(drain=False)), START) is None


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("spec.start", {"start": "2026-12-01T22:00Z"}),
        ("spec.start", {"start": "tomorrow"}),
        ("spec.end", {"end": "2026-12-01T21:00"}),
        ("spec.end", {"end": "2027-12-01T21:00"}),
        ("spec.recurrence", {"recurrence": "every night"}),
        ("spec.nodes", {"zone": "a", "nodes": ("n1",)}),
        ("spec.reason", {"reason": " "}),
        ("spec.owner", {"owner": ""}),
        ("spec.timeZone", {"time_zone": ""}),
        ("spec.noticeSeconds", {"notice_seconds": 1e9}),
        ("spec.region", {"region": "No Region"}),
    ],
)
def test_unusable_window_is_refused(field: str, change: dict[str, Any]) -> None:
    assert field in [cause.field for cause in validate_maintenance_window(window(**change), None)]
