"""What drills derive from a recorded history: writers, their order, and violated invariants."""

from __future__ import annotations

from typing import Any

from holdfast.drills import counters, history_checks, incident_questions
from holdfast.drills.change_recorder import RecordedChange, changed_groups, in_commit_order, writer_roles
from holdfast.drills.report import QUESTIONS, DrillReport, IncidentAnswers


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
