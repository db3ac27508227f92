"""A region does not stop work because the global cell lost its records: absence is not an order to delete."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.expected import of_type
from tests.factories import (
    assignment,
    cache_of,
    confirm_deletion,
    meta,
    replica,
    serving_status,
    tenant,
    with_new_revision,
)

from holdfast.authority.restore_records import restored_entries
from holdfast.link import deletion_orders, mirror
from holdfast.link.deletion_orders import MASS_DELETION_WORKLOADS_MIN, RemovalGuard
from holdfast.model import codec
from holdfast.model.assignment import Assignment, AssignmentStatus
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Key
from holdfast.model.ownership import VOLUME_CLAIM_FINALIZER
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.tenant import Tenant
from holdfast.model.volume import VolumeClaim, VolumeClaimSpec
from holdfast.model.writes import Delete, Update
from holdfast.store.contract import Put

EAST = "us-east"


def writes(copy: Any, originals: Any, *others: Any, **options: Any) -> list[Any]:
    key = (type(copy), copy.key)
    return list(mirror.mirror_writes(key, originals, cache_of(copy, *others), 0.0, region=EAST, **options))


def with_generation(item: Assignment, generation: int) -> Assignment:
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, generation=generation))


def test_assignment_missing_from_the_global_cell_is_held() -> None:
    work = assignment()
    assert writes(work, cache_of(), replica(0, work, status=serving_status())) == []
    assert deletion_orders.held_assignments(cache_of(), cache_of(work)) == [work]


def test_recreated_assignment_does_not_replace_running_work() -> None:
    """Manifests applied again to an emptied global cell give new uids to the same names."""
    work = assignment()
    again = msgspec.structs.replace(work, metadata=meta(work.metadata.name, "acme", uid="other"))
    assert writes(work, cache_of(again), replica(0, work)) == []
    assert deletion_orders.held_assignments(cache_of(again), cache_of(work)) == [work]


def test_drained_assignment_missing_from_the_global_cell_is_deleted() -> None:
    """The orderly deletion: the global cell has emptied it, and the region has reported that no replica is left."""
    drained = assignment(replicas=0)
    assert writes(drained, cache_of()) == [Delete("Assignment", drained.key, drained.uid)]
    assert writes(drained, cache_of(), replica(0, drained)) == [], "not before its last replica is gone"


def test_older_assignment_does_not_replace_a_newer_copy() -> None:
    copy, older = with_generation(assignment(replicas=3), 7), with_generation(assignment(replicas=1), 4)
    assert writes(copy, cache_of(older)) == []
    assert deletion_orders.held_assignments(cache_of(older), cache_of(copy)) == [copy]
    newer = with_generation(older, 8)
    (write,) = writes(copy, cache_of(newer))
    assert of_type(of_type(write, Update).object, Assignment).spec.replicas == 1


def test_copy_from_a_backup_of_the_region_follows_the_global_cell() -> None:
    """Here the region has lost records: the workload may have been deleted or moved since its backup."""
    work = assignment()
    put = restored_entries(EAST, [entry_of(work)], 0.0, "uid", 1)[0][0]
    copy = with_new_revision(codec.decode(kind_of(Assignment), put.value, 0))
    (write,) = writes(copy, cache_of(), replica(0, work))
    assert of_type(of_type(write, Update).object, Assignment).spec.replicas == 0
    assert deletion_orders.held_assignments(cache_of(), cache_of(copy)) == []
    (update,) = writes(copy, cache_of(work))
    assert isinstance(update, Update) and update.object.metadata.generation == 1, "from then on it is held"


def entry_of(item: Assignment) -> Put:
    return Put(kind_of(item).store_key(item.metadata.namespace, item.metadata.name), codec.encode(item))


@pytest.mark.parametrize(
    ("override", "confirmed"),
    [
        (confirm_deletion(EAST), True),
        (confirm_deletion(EAST, tenant="acme"), True),
        (confirm_deletion(EAST, tenant="acme", workload="api"), True),
        (confirm_deletion(EAST, tenant="acme", workload="web"), False),
        (confirm_deletion("eu-west"), False),
    ],
)
def test_confirmed_deletion_empties_the_assignment_first(override: Any, confirmed: bool) -> None:
    work = assignment()
    found = writes(work, cache_of(), replica(0, work), override)
    assert bool(found) is confirmed
    for write in found:
        assert of_type(of_type(write, Update).object, Assignment).spec.replicas == 0
        assert of_type(of_type(write, Update).object, Assignment).spec.epoch > work.spec.epoch


def test_confirmed_deletion_ends_a_suspension() -> None:
    """A suspended Assignment keeps its replicas, so its deletion would wait for them for good (seed 127)."""
    work = assignment(replicas=2, suspended=True)
    [update] = writes(work, cache_of(), confirm_deletion(EAST), replica(0, work))
    spec = of_type(of_type(update, Update).object, Assignment).spec
    assert (spec.replicas, spec.suspended) == (0, False)


def test_tenant_of_held_work_is_held() -> None:
    acme, work = tenant(), assignment()
    assert writes(acme, cache_of(), work) == []
    assert writes(acme, cache_of(), replica(0, work)) == []
    assert writes(acme, cache_of()) == [Delete("Tenant", Key("", "acme"), acme.uid)]


def test_objects_without_work_follow_the_global_cell() -> None:
    level = PriorityClass(metadata=meta("plain"), spec=PriorityClassSpec(priority=1))
    assert writes(level, cache_of()) == [Delete("PriorityClass", level.key, level.uid)]


def ordered(count: int, working: int) -> tuple[int, RemovalGuard, list[Assignment]]:
    """How many of `count` removals a region with `working` workloads carries out."""
    copies = [assignment(f"w{number}", EAST) for number in range(working)]
    replicas = [replica(0, copy) for copy in copies]
    guard, done = RemovalGuard(), 0
    here = cache_of(*copies, *replicas)
    for copy in copies[:count]:
        if guard.allows(copy, here, 1.0):
            done += 1
            here.put(with_new_revision(copy, spec=msgspec.structs.replace(copy.spec, replicas=0)))
    return done, guard, copies


def test_small_regions_and_tenants_are_deleted_without_a_pause() -> None:
    assert ordered(1, 1)[0] == 1
    assert ordered(3, 3)[0] == 3
    assert ordered(MASS_DELETION_WORKLOADS_MIN, MASS_DELETION_WORKLOADS_MIN)[0] == MASS_DELETION_WORKLOADS_MIN
    assert ordered(100, 300)[0] == 100, "a large tenant of a larger region"


def test_removal_of_most_workloads_pauses_until_confirmed() -> None:
    done, guard, copies = ordered(100, 100)
    assert done == 50 and guard.paused
    copy, here = copies[80], cache_of(copies[80], replica(0, copies[80]))
    assert not guard.allows(copy, here, 10_000.0), "time alone does not resume it"
    order = with_generation(msgspec.structs.replace(copy, spec=msgspec.structs.replace(copy.spec, replicas=0)), 2)
    may_remove = {"may_remove": lambda copy, here: guard.allows(copy, here, 1.0)}
    assert writes(copy, cache_of(order), replica(0, copy), **may_remove) == []
    assert deletion_orders.paused_removals(cache_of(order), here) == [copy]
    (write,) = writes(copy, cache_of(order), replica(0, copy), confirm_deletion(EAST), **may_remove)
    assert write.object.spec.replicas == 0
    guard.resume()
    assert guard.allows(copy, here, 1.0)


def test_removal_of_ended_work_does_not_count() -> None:
    guard = RemovalGuard()
    copies = [assignment(f"w{number}", EAST) for number in range(60)]
    assert all(guard.allows(copy, cache_of(*copies), 1.0) for copy in copies)


def test_status_of_an_original_and_a_new_copy_wake_no_mirror() -> None:
    before = assignment()
    told = msgspec.structs.replace(before, status=AssignmentStatus(observed_epoch=1, bound=3))
    assert not list(mirror.woken_by_original(told, before, cache_of()))
    newer = msgspec.structs.replace(before, metadata=msgspec.structs.replace(before.metadata, generation=2))
    for new, old in ((newer, before), (before, None), (None, before)):
        assert list(mirror.woken_by_original(new, old, cache_of()))
    assert not list(mirror.woken_by_assignment(before, None, cache_of())), "only the link creates copies"
    assert list(mirror.woken_by_assignment(newer, before, cache_of()))


def test_missing_tenant_is_deleted_after_its_last_assignment() -> None:
    woken = list(mirror.woken_by_assignment(None, assignment(replicas=0), cache_of()))
    assert mirror.queue_key(Tenant, Key("", "acme")) in woken
    last = replica(0, assignment(replicas=0))
    assert mirror.queue_key(Assignment, Key("acme", last.spec.assignment)) in mirror.woken_by_replica(
        None, last, cache_of()
    )


@pytest.mark.parametrize(
    ("finalizers", "kept"), [((VOLUME_CLAIM_FINALIZER, "example.com/x"), True), (("example.com/x",), False)]
)
def test_copy_of_a_deleted_claim_goes_when_only_finalizers_of_others_keep_it(
    finalizers: tuple[str, ...], kept: bool
) -> None:
    """Else a tenant could fill every region's report of deleted data with claims that never go."""
    named = meta("data", "acme", uid="claim")
    copy = VolumeClaim(named, VolumeClaimSpec(size="1Gi"))
    deleted = msgspec.structs.replace(named, deletion_timestamp="2027-01-15T08:00:00Z", finalizers=finalizers)
    found = writes(copy, cache_of(msgspec.structs.replace(copy, metadata=deleted)))
    assert (found == [Delete("VolumeClaim", copy.key, "claim")]) is not kept
