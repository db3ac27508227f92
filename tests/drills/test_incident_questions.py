"""What drills derive from a recorded history: writers, their order, and violated invariants."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.drills import counters, history_checks, incident_questions, platform_observer
from holdfast.drills.audited_writers import Author, index_records, with_authors
from holdfast.drills.change_recorder import RecordedChange, changed_groups, in_commit_order, writer_roles
from holdfast.drills.recovery_path import recovery_path
from holdfast.drills.report import QUESTIONS, DrillReport, IncidentAnswers
from holdfast.gate.audit import AuditEntry, AuditRecord
from holdfast.model.times import micro_text

BEGAN_AT = 1_800_000_000.0


def step(
    at_s: float,
    kind: str,
    after: Any,
    before: Any = None,
    *,
    cell: str = "east",
    revision: int = 1,
    name: str = "x",
    op: str = "",
) -> RecordedChange:
    groups = tuple(changed_groups(kind, before, after)) if after is not None else ()
    op = op or ("deleted" if after is None else "changed" if before is not None else "created")
    roles = writer_roles(kind, groups, before, after, op=op) if after is not None else ()
    return RecordedChange(at_s, cell, revision, kind, "acme", name, op, groups, roles, before, after)


def binding(uid: str, node: str, *, replica: str = "r1", desired: str = "Run", policy: str = "p1") -> dict[str, Any]:
    spec = {"node": node, "desired": desired, "policyRevision": policy, "intent": {"replicaUid": replica}}
    return {"metadata": {"uid": uid, "name": uid}, "spec": spec}


def test_overlapping_bindings_are_found_and_successive_are_not() -> None:
    first, second = binding("b1", "n1"), binding("b2", "n2")
    violations, checked = history_checks.check_unique_bindings([step(1, "Binding", first), step(2, "Binding", second)])
    assert checked == 2 and len(violations) == 1 and "bound twice" in violations[0]
    stopped = binding("b1", "n1", desired="Stop")
    fine, _ = history_checks.check_unique_bindings(
        [step(1, "Binding", first), step(2, "Binding", stopped, first), step(3, "Binding", second)]
    )
    assert fine == []


def test_binding_with_changed_node_or_revision_violates_s10() -> None:
    before = binding("b1", "n1")
    for after in (binding("b1", "n2"), binding("b1", "n1", policy="p2")):
        violations, checked = history_checks.check_immutable_decisions([step(1, "Binding", after, before)])
        assert checked == 1 and len(violations) == 1 and violations[0].startswith("S10")
    assert (
        history_checks.check_immutable_decisions([step(1, "Binding", binding("b1", "n1", desired="Stop"), before)])[0]
        == []
    )


def test_decreased_attempt_is_found() -> None:
    def at(attempt: int) -> dict[str, Any]:
        return {"metadata": {"uid": "u", "name": "x"}, "spec": {}, "status": {"placement": {"attempt": attempt}}}

    assert history_checks.check_attempts_increase([step(1, "Replica", at(1)), step(2, "Replica", at(2))])[0] == []
    assert len(history_checks.check_attempts_increase([step(1, "Replica", at(2)), step(2, "Replica", at(1))])[0]) == 1


def test_changes_of_a_cell_are_ordered_by_commit() -> None:
    received = [
        step(1.5, "Node", {"metadata": {"name": "n"}}, revision=7, name="late event"),
        step(1.1, "Node", {"metadata": {"name": "n"}}, revision=9, name="early event"),
        step(1.2, "Node", {"metadata": {"name": "n"}}, revision=3, cell="west", name="elsewhere"),
    ]
    assert [(s.name, s.at_s) for s in in_commit_order(received)] == [
        ("late event", 1.1),
        ("early event", 1.1),
        ("elsewhere", 1.2),
    ]


def test_first_action_excludes_usage_reports_and_heartbeats() -> None:
    def region(**health: str) -> dict[str, Any]:
        return {"metadata": {"name": "east"}, "spec": {}, "status": {"health": health}}

    healthy, heartbeat = region(state="Healthy", lastContactAt="1"), region(state="Healthy", lastContactAt="2")
    lost = region(state="Lost", lastContactAt="2")
    used = {"metadata": {"name": "normal"}, "spec": {}, "status": {"used": {"cpu": "1"}}}
    steps = [
        step(0.1, "Region", heartbeat, healthy, name="east"),
        step(0.2, "GrantCopy", used, {"metadata": {"name": "normal"}, "spec": {}, "status": {}}),
        step(0.3, "Region", lost, heartbeat, name="east"),
    ]
    (line,) = incident_questions.first_controllers(steps)
    assert line.startswith("+0.3 s region-health (east) changed Region acme/east") and "Healthy → Lost" in line
    assert incident_questions.first_controllers(steps[:2]) == ["none: no controller wrote"]
    assert incident_questions.desired_state_changes(steps) == ["none: no spec changed in any cell"]


def test_region_that_holds_its_work_is_the_first_to_act() -> None:
    def region(name: str, *conditions: dict[str, str]) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {}, "status": {"conditions": list(conditions)}}

    held = {"type": "HoldsWork", "status": "True", "reason": "GlobalCellReplaced"}
    other = {"type": "CapacityLost", "status": "False", "reason": "AllNodesLive"}

    def by_link(at_s: float, name: str, after: dict[str, Any]) -> RecordedChange:
        written = step(at_s, "Region", after, region(name), name=name)
        return msgspec.structs.replace(written, roles=("link",), audited=True)

    copy, unrelated = by_link(0.1, "west", region("west", held)), by_link(0.2, "east", region("east", other))
    assert incident_questions.first_controllers([copy, unrelated]) == ["none: no controller wrote"]
    decided = by_link(0.3, "east", region("east", held))
    (line,) = incident_questions.first_controllers([copy, unrelated, decided])
    assert line == "+0.3 s link (east) changed Region acme/east (HoldsWork unset → True GlobalCellReplaced)"


def test_counters_of_a_restarted_process_count_from_zero() -> None:
    began, again = (
        {("a", counters.START_TIME_METRIC): 1.0, ("a", "x_total"): 5.0},
        {("a", counters.START_TIME_METRIC): 2.0, ("a", "x_total"): 5.0},
    )
    assert counters.counter_increases(began, again) == {("a", "x_total"): 5.0}
    assert counters.counter_increases(began, {("a", counters.START_TIME_METRIC): 1.0, ("a", "x_total"): 5.0}) == {}


def test_drill_report_prints_every_question_with_its_answer() -> None:
    answers = IncidentAnswers(**{field: [f"answer {field}"] for field in IncidentAnswers.__struct_fields__})
    report = DrillReport("cordon", passed=True, answers=answers)
    text = report.as_text()
    assert len(QUESTIONS) == len(IncidentAnswers.__struct_fields__)
    assert all(question in text and f"answer {field}" in text for field, question in QUESTIONS.items())
    assert list(report.as_json()["questions"]) == list(QUESTIONS.values())


def test_changes_of_a_replaced_store_keep_their_times() -> None:
    """A restored store counts from older revisions, which say nothing about the order with the lost store."""
    gone = msgspec.structs.replace(step(5.0, "Workload", {"metadata": {"name": "w"}}, revision=2), lineage=1)
    before = step(1.0, "Workload", {"metadata": {"name": "w"}}, revision=90)
    assert [s.at_s for s in in_commit_order([gone, before])] == [1.0, 5.0]


def test_objects_lost_with_a_store_are_summed_and_no_action_of_a_controller() -> None:
    held = {"metadata": {"uid": "u", "name": "w"}, "spec": {"replicas": 1}}
    lost = [
        msgspec.structs.replace(step(3.0, "Workload", None, held, cell="global", name=name, op="lost"), lineage=1)
        for name in ("a", "b")
    ]
    found = msgspec.structs.replace(step(9.0, "Workload", held, cell="global", op="found"), lineage=2)
    assert incident_questions.desired_state_changes([*lost, found]) == [
        "+3.0 s global: the store was replaced and lacks 2 Workload",
        "+9.0 s global: the replaced store has again 1 Workload",
    ]
    assert incident_questions.first_controllers([*lost, found]) == [
        "none: no controller wrote",
        "not observed: some changes in global before +9.0 s, because its store was replaced",
    ]


def test_use_above_a_lowered_limit_is_a_violation_only_if_it_grows() -> None:
    def used(*names: str) -> list[dict[str, Any]]:
        meta = {"namespace": "acme"}
        return [{"metadata": {**meta, "name": n}, "spec": {"node": "n", "resources": {"cpu": "1"}}} for n in names]

    def copies(cpu: str) -> list[dict[str, Any]]:
        return [{"metadata": {"namespace": "acme"}, "spec": {"grantClass": "Normal", "limit": {"cpu": cpu}}}]

    known: platform_observer.UsedBefore = {}
    assert platform_observer._limits("east", used("a", "b"), copies("2"), known) == []
    assert platform_observer._limits("east", used("a", "b"), copies("1"), known) == [], "the limit was lowered"
    (grown,) = platform_observer._limits("east", used("a", "b", "c"), copies("1"), known)
    assert grown.startswith("S3: tenant acme exceeds its Normal limit in east")
    assert len(platform_observer._limits("east", used("a", "b"), copies("1"), {})) == 1, "seen for the first time"


# Batches that proceed by themselves


def batch_replica(name: str, *, phase: str = "", **status: Any) -> dict[str, Any]:
    execution = {"execution": {"phase": phase, "attempt": 1}} if phase else {}
    spec = {"workload": "fraud", "assignment": "fraud.east.normal", "type": "Batch"}
    placed = {"placement": {"attempt": 1, "binding": f"{name}.1"}}
    return {"metadata": {"uid": name, "name": name}, "spec": spec, "status": {**placed, **execution, **status}}


def finished_batch_steps() -> list[RecordedChange]:
    """A replica succeeds, is released, and the next one is created and placed, as replicate, release, scheduler and
    authority write it."""
    running, ended = batch_replica("f-0", phase="Running"), batch_replica("f-0", phase="Succeeded")
    asked = batch_replica("f-0", phase="Succeeded", release={"reason": "Finished", "attempt": 1})
    released = {**asked, "status": {**asked["status"], "placement": {"attempt": 2}}}
    request = {"metadata": {"uid": "q", "name": "fraud"}, "spec": {"workload": "fraud"}}
    bound = {**binding("f-1.1", "n1", replica="f-1")}
    bound["spec"] = {**bound["spec"], "workload": "fraud"}
    return [
        step(1.0, "Replica", ended, running, name="f-0"),
        step(1.1, "Replica", batch_replica("f-1"), name="f-1"),
        step(1.1, "SchedulingRequest", request, name="fraud"),
        step(1.2, "Replica", asked, ended, name="f-0"),
        step(1.3, "Replica", released, asked, name="f-0"),
        step(1.4, "Binding", bound, name="f-1.1"),
    ]


def lost_node_step() -> RecordedChange:
    def node(state: str) -> dict[str, Any]:
        return {"metadata": {"uid": "n", "name": "n1"}, "spec": {}, "status": {"contact": {"state": state}}}

    return step(9.0, "Node", node("Lost"), node("Live"), cell="west", name="n1")


def test_batch_that_ends_by_itself_is_not_the_first_controller() -> None:
    (line,) = incident_questions.first_controllers([*finished_batch_steps(), lost_node_step()])
    assert line.startswith("+9.0 s node-health (west) changed Node acme/n1")


def rebalancing_steps(**disturbance: Any) -> list[RecordedChange]:
    """A replica of another workload is moved for a more even spread, and the global cell counts it."""

    def service(attempt: int, **status: Any) -> dict[str, Any]:
        placed = {"placement": {"attempt": attempt, "binding": f"r-0.{attempt}"}, **status}
        return {"metadata": {"uid": "r-0", "name": "r-0"}, "spec": {"workload": "risk"}, "status": placed}

    def share(number: int) -> dict[str, Any]:
        spec = {"workload": "risk", "region": "east", "disruptionShare": number, "epoch": number}
        return {"metadata": {"uid": "a", "name": "risk.east"}, "spec": spec}

    def counted(message: str) -> dict[str, Any]:
        return {"metadata": {"uid": "w", "name": "risk"}, "spec": {}, "status": {"rollout": {"message": message}}}

    asked = service(1, rebalance={"reason": "uneven"})
    leaving = service(1, release={"reason": "Rebalanced", "attempt": 1}, **disturbance)
    bound = binding("r-0.2", "n2", replica="r-0")
    bound["spec"] = {**bound["spec"], "workload": "risk"}
    return [
        step(0.1, "Replica", asked, service(1), name="r-0"),
        step(0.2, "Assignment", share(1), share(0), cell="global", name="risk.east"),
        step(0.3, "Replica", leaving, asked, name="r-0"),
        step(0.4, "Workload", counted("2 of 3"), counted("3 of 3"), cell="global", name="risk"),
        step(0.5, "Binding", bound, name="r-0.2"),
        step(0.6, "Replica", service(2), leaving, name="r-0"),
    ]


def test_workload_that_is_rebalanced_meanwhile_is_not_the_first_controller() -> None:
    (line,) = incident_questions.first_controllers([*rebalancing_steps(), lost_node_step()])
    assert line.startswith("+9.0 s node-health (west) changed Node acme/n1")


def test_rebalanced_workload_that_the_incident_disturbs_is_a_reaction() -> None:
    steps = rebalancing_steps(contact={"lost": True, "attempt": 1})
    assert len(incident_questions.first_controllers([*steps, lost_node_step()])) > 1


def test_other_change_of_the_assignment_of_a_rebalanced_workload_is_a_reaction() -> None:
    spec = {"workload": "risk", "region": "east", "replicas": 3}
    before = {"metadata": {"uid": "a", "name": "risk.east"}, "spec": spec}
    grown = step(
        0.7, "Assignment", {**before, "spec": {**spec, "replicas": 4}}, before, cell="global", name="risk.east"
    )
    lines = incident_questions.first_controllers([*rebalancing_steps(), grown])
    assert [line.split()[2] for line in lines] == ["assign"]


def test_release_of_a_replica_that_succeeded_before_the_failure_is_no_reaction() -> None:
    (line,) = incident_questions.first_controllers([*finished_batch_steps()[1:], lost_node_step()])
    assert " node-health (west) " in line


def test_batch_whose_node_is_lost_is_a_reaction() -> None:
    lost = batch_replica("f-2", phase="Running", contact={"lost": True, "attempt": 1})
    moved = batch_replica("f-2", phase="Running", contact={"lost": True}, release={"reason": "NodeLost"})
    steps = [
        *finished_batch_steps(),
        step(2.0, "Replica", lost, batch_replica("f-2", phase="Running"), name="f-2"),
        step(2.5, "Replica", moved, lost, name="f-2"),
    ]
    lines = incident_questions.first_controllers(steps)
    assert any(line.startswith("+2.0 s node-health (east) changed Replica acme/f-2") for line in lines)
    assert any(line.startswith("+2.5 s release (east) changed Replica acme/f-2") for line in lines)
    assert any(line.startswith("+1.1 s replicate (east) created Replica acme/f-1") for line in lines)


# Writers of changes that a watch showed only together


def region_item(revision: int, *, sequence: int, state: str) -> dict[str, Any]:
    status = {"health": {"state": state}, "report": {"sequence": sequence}}
    meta = {"uid": "r", "name": "east", "resourceVersion": str(revision)}
    return {"metadata": meta, "spec": {}, "status": status}


def region_record(principal: str, at_s: float, replaced: int) -> AuditRecord:
    entry = AuditEntry("update", "Region", "east", uid="r", before=replaced)
    return AuditRecord(micro_text(BEGAN_AT + at_s), principal, "update", "Committed", entries=(entry,))


def merged_region_change() -> RecordedChange:
    """What a watch records that had to list again: two versions of the Region were not observed."""
    old, new = region_item(5, sequence=1, state="Lost"), region_item(9, sequence=2, state="Healthy")
    groups = tuple(changed_groups("Region", old, new))
    return RecordedChange(4.0, "global", 9, "Region", "", "east", "changed", groups, (), old, new, lineage=1)


def test_change_with_unobserved_versions_in_between_is_divided_among_their_writers() -> None:
    authors: dict[Any, list[Author]] = {}
    records = [
        region_record("holdfast:region:east", 3.0, 5),
        region_record("holdfast:controller:region-health", 3.5, 7),
        region_record("holdfast:region:east", 8.0, 9),
    ]
    index_records(authors, "global", records, since_s=BEGAN_AT)
    found = with_authors([merged_region_change()], authors, began_at=BEGAN_AT)
    assert [(s.roles, s.groups, round(s.at_s, 1)) for s in found] == [
        (("region",), ("status.report",), 3.0),
        (("region-health",), ("status",), 3.5),
    ]
    (line,) = [line for line in recovery_path(found, {}, [], []) if "Region" in line]
    assert line == "+3.5 s region-health (global): Region east state Lost → Healthy"


def test_change_whose_first_version_has_no_record_has_the_writer_of_the_next() -> None:
    authors: dict[Any, list[Author]] = {}
    index_records(authors, "global", [region_record("holdfast:controller:region-health", 3.5, 7)], since_s=BEGAN_AT)
    (found,) = with_authors([merged_region_change()], authors, began_at=BEGAN_AT)
    assert found.audited and found.roles == ("region-health",)
