"""What a restore changes in the objects of a regional cell, so that nothing of the former life is believed."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.expected import of_type
from tests.factories import assignment, binding, bound_status, meta, node, region, replica, with_new_revision

from holdfast.authority.restore_records import restored_entries
from holdfast.model import codec, limits
from holdfast.model.assignment import Assignment
from holdfast.model.binding import Binding, DesiredRunState
from holdfast.model.core import Lease, LeaseSpec
from holdfast.model.election_term import INCARNATION_TERM, Term, TermSpec
from holdfast.model.grant_copy import NOT_RENEWED, GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of, kind_of_store_key
from holdfast.model.lease_page import LeasePage, LeasePageSpec, NodeLease
from holdfast.model.meta import Object
from holdfast.model.node import FenceBlock, Node
from holdfast.model.quota import Grant, GrantSpec
from holdfast.model.region import Region
from holdfast.store.contract import Put

NOW = 1_800_000_000.0


def restored(*items: Object, known: int = 1, cell: str = "us-east") -> tuple[dict[str, Any], int]:
    """The stored objects after the restore, by key, and the incarnation."""
    puts = [Put(kind_of(i).store_key(i.metadata.namespace, i.metadata.name), codec.encode(i)) for i in items]
    entries, incarnation = restored_entries(cell, puts, NOW, "uid", known)
    found = {}
    for put in entries:
        kind = kind_of_store_key(put.key)
        assert kind is not None
        found[put.key] = codec.decode(kind, put.value, 0)
    return found, incarnation


def fenced(machine: Node, epoch: int) -> Node:
    status = msgspec.structs.replace(machine.status, fence=FenceBlock(fenced_epoch=epoch))
    return with_new_revision(machine, status=status)


def test_every_node_is_fenced_at_the_highest_epoch_that_is_known_of_it() -> None:
    page = LeasePage(metadata=meta("page-0"), spec=LeasePageSpec(0, {"by-lease": NodeLease(7, NOW, 15.0)}))
    found, _ = restored(
        page, node("by-lease", epoch=2), node("by-report", epoch=4), fenced(node("by-fence", epoch=1), 9)
    )
    fences = {item.metadata.name: item.status.fence for item in found.values() if isinstance(item, Node)}
    assert {name: fence.fenced_epoch for name, fence in fences.items()} == {
        "by-lease": 7,
        "by-report": 4,
        "by-fence": 9,
    }
    assert {fence.reason for fence in fences.values()} == {"RestoreInProgress"}


def test_every_binding_requests_a_stop_and_one_that_stops_already_is_kept() -> None:
    runs = binding(replica(0, status=bound_status()))
    other = binding(replica(1, status=bound_status()))
    spec = msgspec.structs.replace(other.spec, desired=DesiredRunState.STOP, stop_reason="Drained")
    stops = with_new_revision(other, metadata=meta("stops", "acme"), spec=spec)
    found, _ = restored(runs, stops)
    reasons = {i.metadata.name: (i.spec.desired, i.spec.stop_reason) for i in found.values() if isinstance(i, Binding)}
    assert reasons == {
        runs.metadata.name: (DesiredRunState.STOP, "RestoreInProgress"),
        "stops": (DesiredRunState.STOP, "Drained"),
    }


def test_no_grant_is_spent_and_no_election_is_held_after_a_restore() -> None:
    grant = GrantCopy(metadata=meta("g", "acme", generation=3), spec=GrantCopySpec(limit={"cpu": "4"}))
    lease = Lease(metadata=meta("authority"), spec=LeaseSpec(holder_identity="former"))
    found, _ = restored(grant, lease)
    (kept,) = [of_type(i, GrantCopy) for i in found.values() if isinstance(i, GrantCopy)]
    assert (kept.spec.limit, kept.spec.lease_expires_at, kept.metadata.generation) == ({}, NOT_RENEWED, 4)
    (election,) = [i for i in found.values() if isinstance(i, Lease)]
    assert election.spec.holder_identity == ""


def test_incarnation_is_higher_than_the_backup_and_than_the_data_it_replaces() -> None:
    term = Term(metadata=meta(INCARNATION_TERM), spec=TermSpec(holder="joined", term=5))
    assert restored(assignment())[1] == 2
    assert restored(term)[1] == 6
    found, incarnation = restored(term, known=8)
    assert incarnation == 9
    (kept,) = [i for i in found.values() if isinstance(i, Term)]
    assert kept.spec.term == 9, "the one of the backup is replaced"


def test_epochs_of_a_restored_global_cell_lie_above_all_epochs_before_and_within_its_incarnation() -> None:
    """A region acknowledges by epoch: an acknowledgement of a former life must match nothing."""
    work = assignment(epoch=7)
    grant = Grant(metadata=meta("east.normal", "acme"), spec=GrantSpec(region="east", limit={"cpu": "4"}, epoch=9))
    found, incarnation = restored(work, grant, region("east"), cell="global", known=3)
    (there,) = [i for i in found.values() if isinstance(i, Region)]
    assert incarnation == there.status.restore_incarnation == 4
    first = incarnation * limits.EPOCHS_PER_INCARNATION
    (kept,) = [i for i in found.values() if isinstance(i, Assignment)]
    (empty,) = [i for i in found.values() if isinstance(i, Grant)]
    assert (kept.spec.epoch, empty.spec.epoch) == (first + 7, first + 9)
    assert first < kept.metadata.generation < first + limits.EPOCHS_PER_INCARNATION
    assert (empty.spec.limit, empty.spec.unacknowledged_peak) == ({}, {"cpu": "4"}), "it may still be spent"
