"""The sixth answer: what repaired the platform, from recorded changes, apart from the drill's own undo."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.drills.test_incident_questions import step

from holdfast.drills import incident_questions
from holdfast.drills.audited_writers import index_records, with_authors
from holdfast.drills.recovery_path import NO_REPAIR, recovery_path
from holdfast.gate.audit import AuditEntry, AuditRecord
from holdfast.model.times import micro_text


def replica(name: str, *, node: str = "", attempt: int = 1, serving: bool = False, **status: Any) -> dict[str, Any]:
    placement = {"attempt": attempt, **({"node": node, "binding": f"{name}.{attempt}"} if node else {})}
    full: dict[str, Any] = {"placement": placement, **status}
    if serving:
        full["execution"] = {"phase": "Running", "ready": True, "attempt": attempt}
        full["traffic"] = {"serving": True, "attempt": attempt}
    spec = {
        "workload": "web",
        "assignment": "a",
        "workloadUid": "w",
        "revision": "1",
        "template": {"command": ["sleep"]},
    }
    return {"metadata": {"uid": name, "name": name, "namespace": "acme"}, "spec": spec, "status": full}


def path(
    *steps: Any, undone: tuple[str, ...] = (), left: tuple[str, ...] = (), answers: dict[str, float] | None = None
) -> list[str]:
    return recovery_path(steps, {("east", k): v for k, v in (answers or {}).items()}, undone, left)


def test_teardown_alone_is_no_repair_path() -> None:
    gone = step(9.0, "Workload", None, {"metadata": {"name": "x"}, "spec": {}}, cell="global")
    assert path(gone, undone=("tenant drill",)) == [
        NO_REPAIR,
        "undone by the drill: tenant drill",
        "cleanup check: all resources returned",
    ]
    assert path(left=("slot",))[-1] == "cleanup check: 1 not returned"


def test_lost_node_is_told_from_contact_to_serving_again() -> None:
    def node(state: str, epoch: int = 0) -> dict[str, Any]:
        return {
            "metadata": {"name": "n1"},
            "spec": {},
            "status": {"contact": {"state": state}, "fence": {"fencedEpoch": epoch}},
        }

    served, released = (
        replica("r", node="n1", serving=True),
        replica("r", node="n1", serving=True, release={"reason": "NodeLost"}),
    )
    unbound, moved = replica("r", attempt=2), replica("r", node="n2", attempt=2)
    back = replica("r", node="n2", attempt=2, serving=True)
    lines = path(
        step(1.0, "Node", node("Expired"), node("Live"), name="n1"),
        step(2.0, "Node", node("Expired", 1), node("Expired"), name="n1"),
        step(3.0, "Replica", released, served, name="r"),
        step(4.0, "Replica", unbound, released, name="r"),
        step(5.0, "Replica", moved, unbound, name="r"),
        step(6.0, "Replica", back, moved, name="r"),
    )
    assert lines[:2] == [
        "+1.0 s node-health (east): Node acme/n1 state Live → Expired",
        "+2.0 s authority (east): Node acme/n1 fencedEpoch 0 → 1",
    ]
    text = "\n".join(lines)
    assert "+3.0 s release (east): released acme/r: NodeLost" in text
    assert "+5.0 s authority (east): bound acme/r again, n1 → n2" in text
    assert "+6.0 s serve (east): acme/web serves with as many replicas again (1 had stopped)" in text


def test_refused_and_repeated_proposals_are_part_of_the_path() -> None:
    rejected = 'holdfast_authority_responses_total{reason="StaleAttempt",result="Rejected",verb="reserve"}'
    already = 'holdfast_authority_responses_total{reason="",result="Already",verb="bind"}'
    accepted = 'holdfast_authority_responses_total{reason="",result="Accepted",verb="bind"}'
    lines = path(answers={rejected: 2.0, already: 1.0, accepted: 9.0})
    assert lines[:2] == [
        "authority (east): answered bind with Already, 1 time(s)",
        "authority (east): answered reserve with Rejected, StaleAttempt, 2 time(s)",
    ]


def test_new_leader_held_autoscaler_and_rolled_back_policy_are_told() -> None:
    def term(number: int) -> dict[str, Any]:
        return {"metadata": {"name": "authority"}, "spec": {"term": number}}

    def workload(reason: str, replicas: int) -> dict[str, Any]:
        return {
            "metadata": {"name": "web"},
            "spec": {"replicas": 2},
            "status": {"scale": {"reason": reason, "replicas": replicas}},
        }

    def revision(sequence: int) -> dict[str, Any]:
        return {"metadata": {"name": "default-1"}, "spec": {"sequence": sequence}}

    published = step(3.0, "PolicyRevision", revision(3), revision(1), cell="global", name="default-1")
    lines = path(
        step(1.0, "Term", term(2), term(1), name="authority"),
        step(2.0, "Workload", workload("ScaleUpBlocked", 2), workload("", 2), cell="global", name="web"),
        step(2.5, "Workload", workload("ScaledUp", 4), workload("ScaleUpBlocked", 2), cell="global", name="web"),
        published,
    )
    text = "\n".join(lines)
    assert "a new leader of authority, term 1 → 2" in text
    assert "autoscale (global): Workload acme/web replicas 2 → 4" in text
    assert "policy (global): published default-1 as sequence 3" in text
    (first,) = incident_questions.first_controllers([published])
    assert first.startswith("+3.0 s policy (global) changed PolicyRevision"), "a published policy is an action"


def test_writers_and_times_come_from_the_audit_log() -> None:
    began_at = 1_800_000_000.0
    before = {"metadata": {"uid": "u", "name": "x", "resourceVersion": "7"}, "spec": {"replicas": 1}}
    after = {"metadata": {"uid": "u", "name": "x", "resourceVersion": "9"}, "spec": {"replicas": 2}}
    change = step(5.0, "Assignment", after, before, cell="global", revision=9)
    created = step(6.0, "Binding", {**before, "spec": {"node": "n"}}, name="b", revision=11)

    def record(principal: str, at_s: float, entry: AuditEntry, term: int = 0) -> AuditRecord:
        return AuditRecord(micro_text(began_at + at_s), principal, "update", "Committed", entries=(entry,), term=term)

    authors: Any = {}
    replaced = AuditEntry("update", "Assignment", "x", "acme", before=7)
    index_records(authors, "global", [record("holdfast:controller:recover", 4.2, replaced)], since_s=began_at)
    bound = record("holdfast:controller:scheduler", 5.9, AuditEntry("create", "Binding", "b", "acme", "u"), term=3)
    index_records(authors, "east", [bound], since_s=began_at)
    named = with_authors([change, created], authors, began_at=began_at)
    assert [(s.roles, s.requested_by, round(s.at_s, 3), s.audited) for s in named] == [
        (("recover",), "", 4.2, True),
        (("authority",), "scheduler", 5.9, True),
    ]
    assert with_authors([change], {}, began_at=began_at) == [change], "without a record the owner stands"
    later = msgspec.structs.replace(change, at_s=1.0)
    assert with_authors([later], authors, began_at=began_at) == [later], "a later record belongs to another change"
