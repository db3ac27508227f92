"""node-health: the contact state of a node from its lease, at each boundary, and which changes wake it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type
from tests.factories import bound_status, cache_of, meta, node, replica

from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.meta import Key
from holdfast.model.node import ContactBlock, ContactState, FenceBlock, Node
from holdfast.model.replica import Replica, ReplicaContact
from holdfast.model.times import micro_text, parse_time
from holdfast.model.writes import Outcome, SetStatus
from holdfast.scheduling import node_health
from holdfast.scheduling.node_health import RENEWAL_LATE_HELD_S, RENEWAL_LATE_S

replace = msgspec.structs.replace
KEY = Key("", "n1")
MADE_S = parse_time(node().metadata.creation_timestamp)
RENEWED_S = MADE_S + 100.0
TTL_S = 15.0
LIVE, EXPIRED, FENCED, NO_LEASE = ContactState.LIVE, ContactState.EXPIRED, ContactState.FENCED, ContactState.NO_LEASE


def page(renewed_s: float = RENEWED_S, *, epoch: int = 1, ttl_s: float = TTL_S, name: str = "0") -> LeasePage:
    return LeasePage(meta(name), LeasePageSpec(page=0, leases={"n1": NodeLease(epoch, renewed_s, ttl_s)}))


def machine(contact: ContactState = LIVE, *, reason: str = "", since_s: float = MADE_S, fenced: int = 0) -> Node:
    found = node()
    block = ContactBlock(state=contact, since=micro_text(since_s), reason=reason)
    return replace(found, status=replace(found.status, contact=block, fence=FenceBlock(fenced_epoch=fenced)))


def contact_of(outcome: Outcome) -> ContactBlock | None:
    blocks = [w.blocks["contact"] for w in outcome.writes if isinstance(w, SetStatus) and w.kind == "Node"]
    assert len(blocks) < 2
    return of_type(blocks[0], ContactBlock) if blocks else None


@pytest.mark.parametrize(
    ("passed_s", "state", "reason", "recheck_s"),
    [
        (0.0, LIVE, "LeaseRenewed", RENEWAL_LATE_S + 0.05),
        (RENEWAL_LATE_S - 0.5, LIVE, "LeaseRenewed", 0.55),
        (RENEWAL_LATE_S, LIVE, "RenewalLate", TTL_S - RENEWAL_LATE_S + 0.05),
        (TTL_S - 0.5, LIVE, "RenewalLate", 0.55),
        (TTL_S, EXPIRED, "LeaseExpired", None),
        (TTL_S + 100.0, EXPIRED, "LeaseExpired", None),
    ],
)
def test_contact_follows_the_age_of_the_renewal(
    passed_s: float, state: ContactState, reason: str, recheck_s: float | None
) -> None:
    found = node_health.decide(KEY, cache_of(machine(NO_LEASE), page()), RENEWED_S + passed_s)
    assert contact_of(found) == ContactBlock(state=state, since=micro_text(RENEWED_S + passed_s), reason=reason)
    (notice,) = found.notices
    assert (notice.reason, notice.warning) == (reason, reason != "LeaseRenewed")
    assert found.requeue_after_s == (pytest.approx(recheck_s) if recheck_s is not None else None)


def test_lease_shorter_than_the_late_bound_expires_without_being_late() -> None:
    found = node_health.decide(KEY, cache_of(machine(NO_LEASE), page(ttl_s=5.0)), RENEWED_S + 4.5)
    assert contact_of(found) == ContactBlock(state=LIVE, since=micro_text(RENEWED_S + 4.5), reason="LeaseRenewed")
    assert found.requeue_after_s == pytest.approx(0.55)


@pytest.mark.parametrize(("fenced", "epoch", "state"), [(0, 1, LIVE), (1, 1, FENCED), (2, 1, FENCED), (1, 2, LIVE)])
def test_node_is_fenced_up_to_the_fenced_epoch(fenced: int, epoch: int, state: ContactState) -> None:
    found = contact_of(
        node_health.decide(KEY, cache_of(machine(NO_LEASE, fenced=fenced), page(epoch=epoch)), RENEWED_S)
    )
    assert found is not None and found.state is state


@pytest.mark.parametrize(("ended_s", "state"), [(-0.5, NO_LEASE), (0.0, EXPIRED), (0.5, EXPIRED)])
def test_lease_that_ended_before_the_node_was_created_belongs_to_a_former_node(
    ended_s: float, state: ContactState
) -> None:
    former = page(MADE_S + ended_s - TTL_S)
    found = contact_of(node_health.decide(KEY, cache_of(machine(LIVE), former), MADE_S + 200.0))
    assert found is not None and found.state is state


def test_node_without_a_creation_time_has_no_former_node() -> None:
    item = machine(NO_LEASE)
    item = replace(item, metadata=replace(item.metadata, creation_timestamp=""))
    found = contact_of(node_health.decide(KEY, cache_of(item, page()), RENEWED_S))
    assert found is not None and found.state is LIVE


def test_newest_lease_is_that_of_the_highest_epoch_and_then_of_the_last_renewal() -> None:
    old, new, newest = page(9.0, epoch=1), page(5.0, epoch=2), page(6.0, epoch=2)
    lease = node_health.newest_lease("n1", [old, newest, new])
    assert lease == NodeLease(2, 6.0, TTL_S)
    assert node_health.newest_lease("n2", [old]) is None


def test_node_without_a_lease_leaves_the_marks_of_replicas() -> None:
    placed = replica(status=bound_status(name="web-0"))
    found = node_health.decide(KEY, cache_of(machine(LIVE), placed), MADE_S)
    block = contact_of(found)
    assert block is not None and (block.state, block.reason) == (NO_LEASE, "NodeUnreachable")
    assert len(found.writes) == 1 and found.requeue_after_s is None


def test_unchanged_contact_is_not_written_and_looked_at_again() -> None:
    found = node_health.decide(KEY, cache_of(machine(LIVE, reason="LeaseRenewed"), page()), RENEWED_S)
    assert (found.writes, found.notices) == ((), ())
    assert found.requeue_after_s == pytest.approx(RENEWAL_LATE_S + 0.05)


@pytest.mark.parametrize(
    ("held_s", "renewed_ago_s", "written", "recheck_s"),
    [
        (0.5, 1.0, False, 0.55),
        (30.0, 1.0, False, RENEWAL_LATE_S - 1.0 + 0.05),
        (0.0, 1.0, True, RENEWAL_LATE_S - 1.0 + 0.05),
        (-1.0, 1.0, True, RENEWAL_LATE_S - 1.0 + 0.05),
    ],
)
def test_late_renewal_stays_reported_for_a_while(
    held_s: float, renewed_ago_s: float, written: bool, recheck_s: float
) -> None:
    since_s = RENEWED_S + held_s - RENEWAL_LATE_HELD_S
    told = machine(LIVE, reason="RenewalLate", since_s=since_s)
    found = node_health.decide(KEY, cache_of(told, page(RENEWED_S - renewed_ago_s)), RENEWED_S)
    assert bool(found.writes) is written
    assert found.requeue_after_s == pytest.approx(recheck_s)


@pytest.mark.parametrize(
    ("known", "passed_s", "state"),
    [
        (machine(EXPIRED, reason="RenewalLate", since_s=RENEWED_S), 0.0, LIVE),
        (machine(LIVE, reason="LeaseRenewed", since_s=RENEWED_S), RENEWAL_LATE_S, LIVE),
        (machine(LIVE, reason="RenewalLate", since_s=RENEWED_S), TTL_S, EXPIRED),
        (machine(LIVE, reason="RenewalLate", since_s=RENEWED_S), RENEWAL_LATE_S, None),
        (machine(LIVE, reason="LeaseRenewed", since_s=RENEWED_S), 0.0, None),
    ],
    ids=["back", "late", "expired", "still late", "renewed in time"],
)
def test_only_a_renewal_after_a_late_one_is_held_back(known: Node, passed_s: float, state: ContactState | None) -> None:
    found = contact_of(node_health.decide(KEY, cache_of(known, page()), RENEWED_S + passed_s))
    assert (found.state if found is not None else None) is state


def test_replica_whose_mark_is_right_does_not_hide_the_next_one() -> None:
    right = replica(0, status=bound_status(name="a", contact=ReplicaContact(lost=True, attempt=1, node="n1")))
    wrong = replica(1, status=bound_status(name="b"))
    found = node_health.decide(KEY, cache_of(machine(EXPIRED), page(), right, wrong), RENEWED_S + TTL_S)
    assert [write.key for write in found.writes if isinstance(write, SetStatus)] == [wrong.key]


@pytest.mark.parametrize(
    ("passed_s", "lost_before", "lost"),
    [(0.0, False, None), (0.0, True, False), (TTL_S, False, True), (TTL_S, True, None)],
)
def test_replicas_are_marked_when_the_contact_of_their_node_changes(
    passed_s: float, lost_before: bool, lost: bool | None
) -> None:
    mark = ReplicaContact(lost=True, attempt=1, node="n1") if lost_before else None
    placed = replica(status=bound_status(name="web-0", contact=mark))
    found = node_health.decide(KEY, cache_of(machine(NO_LEASE), page(), placed), RENEWED_S + passed_s)
    marks = [w.blocks["contact"] for w in found.writes if isinstance(w, SetStatus) and w.kind == "Replica"]
    reason = "LeaseExpired" if lost else "LeaseRenewed"
    now = micro_text(RENEWED_S + passed_s)
    expected = ReplicaContact(lost=bool(lost), attempt=1, node="n1", since=now, reason=reason)
    assert marks == ([] if lost is None else [expected])


def test_replicas_of_a_removed_node_are_lost() -> None:
    placed = replica(status=bound_status(name="web-0"))
    found = node_health.decide(KEY, cache_of(placed), RENEWED_S)
    (write,) = found.writes
    assert isinstance(write, SetStatus)
    mark = of_type(write.blocks["contact"], ReplicaContact)
    assert (mark.lost, mark.reason) == (True, "NodeNotFound")


def test_keys_are_all_nodes_and_removed_ones_with_replicas() -> None:
    cache = cache_of(
        node(),
        node("n2"),
        replica(0, status=bound_status("n1", name="a")),
        replica(1, status=bound_status("gone", name="b")),
        replica(2),
    )
    assert list(node_health.keys(cache)) == [Key("", "n1"), Key("", "n2"), Key("", "gone")]


@pytest.mark.parametrize(
    ("new", "old", "wakes"),
    [
        (machine(), None, True),
        (None, machine(), True),
        (machine(), machine(), False),
        (machine(EXPIRED), machine(), True),
        (machine(fenced=1), machine(), True),
        (None, None, False),
    ],
)
def test_node_is_woken_by_its_fence_and_contact(new: Node | None, old: Node | None, wakes: bool) -> None:
    assert list(node_health.woken_by_node(new, old, cache_of())) == ([KEY] if wakes else [])


@pytest.mark.parametrize(
    ("new", "old", "wakes"),
    [
        (page(), None, True),
        (None, page(), False),
        (page(RENEWED_S + 5.0), page(), False),
        (page(RENEWED_S + RENEWAL_LATE_S), page(), False),
        (page(RENEWED_S + RENEWAL_LATE_S + 0.5), page(), True),
        (page(RENEWED_S + 4.5, ttl_s=4.0), page(ttl_s=4.0), True),
        (page(RENEWED_S + 5.0, epoch=2), page(), True),
    ],
)
def test_page_wakes_nodes_with_a_new_epoch_or_a_late_renewal(
    new: LeasePage | None, old: LeasePage | None, wakes: bool
) -> None:
    assert list(node_health.woken_by_page(new, old, cache_of())) == ([KEY] if wakes else [])


def placed_on(name: str = "n1", *, attempt: int = 1, lost: bool = False, **more: Any) -> Replica:
    mark = ReplicaContact(lost=True, attempt=attempt, node=name) if lost else None
    return replica(status=bound_status(name, name="web-0", attempt=attempt, contact=mark, **more))


@pytest.mark.parametrize(
    ("new", "old", "contact", "wakes"),
    [
        (None, placed_on(), EXPIRED, False),
        (replica(), None, EXPIRED, False),
        (placed_on(), None, EXPIRED, True),
        (placed_on(), None, LIVE, False),
        (placed_on(), None, None, True),
        (placed_on(lost=True), None, LIVE, True),
        (placed_on(), placed_on(), EXPIRED, False),
        (placed_on(), placed_on(lost=True), EXPIRED, True),
        (placed_on(attempt=2), placed_on(), EXPIRED, True),
        (placed_on(), placed_on("n2"), EXPIRED, True),
    ],
)
def test_replica_wakes_its_node_if_it_must_be_marked(
    new: Replica | None, old: Replica | None, contact: ContactState | None, wakes: bool
) -> None:
    cache = cache_of(machine(contact)) if contact is not None else cache_of()
    assert list(node_health.woken_by_replica(new, old, cache)) == ([KEY] if wakes else [])
