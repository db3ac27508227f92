"""Effects of a commit: identity, revisions, defaults, no-ops, conflicts, fencing tokens, dry runs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from tests.expected import of_type
from tests.gate.conftest import OPERATOR, USER, TestPorts, World, assignment, by, tenant, with_meta, with_spec, workload

from holdfast.client.contract import FencingToken
from holdfast.model import limits
from holdfast.model.assignment import Assignment
from holdfast.model.core import Event, ObjectReference
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.errors import (
    AlreadyExists,
    Ambiguous,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    StaleToken,
)
from holdfast.model.meta import Condition, ObjectMeta
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.tenant import Tenant
from holdfast.model.workload import Summary, Workload, WorkloadStatus
from holdfast.model.writes import Create, Delete, SetStatus, Update
from holdfast.store.contract import Committed, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.objects import Objects
from holdfast.store.sqlite import SqliteStore


async def test_create_sets_identity_and_initial_finalizers(world: World) -> None:
    given = msgspec.structs.replace(workload(), status=WorkloadStatus(summary=Summary(serving=9)))
    made = await world.create(USER, with_meta(given, uid="chosen", generation=7, deletion_timestamp="x"))
    meta = made.metadata
    assert meta.uid.startswith("uid-")
    assert (meta.generation, meta.deletion_timestamp) == (1, "")
    assert meta.creation_timestamp == "2027-01-15T08:00:00Z"
    assert meta.finalizers == ("holdfast.dev/assignments",)
    assert made.status == WorkloadStatus(), "a user does not own the status"
    assert world.get(Workload, "web", "shop") == made


async def test_create_applies_defaults(world: World) -> None:
    given = with_spec(
        workload(), template=msgspec.structs.replace(workload().spec.template, resources={"cpu": "1000m"})
    )
    made = await world.create(USER, given)
    assert made.spec.template.resources == {"cpu": "1"}


async def test_create_keeps_only_status_owned_by_writer(world: World) -> None:
    given = msgspec.structs.replace(assignment(), status=msgspec.structs.replace(assignment().status, serving=3))
    made = await world.create(by("assign"), given)
    assert made.status.serving == 0
    both = msgspec.structs.replace(by("assign"), roles=frozenset({"assign", "region"}), region="north")
    await world.do(by("assign"), Delete("Assignment", made.key, made.uid))
    assert (await world.create(both, given)).status.serving == 3


async def test_create_of_existing_or_versioned_object_is_refused(world: World) -> None:
    made = await world.create(USER, workload())
    with pytest.raises(AlreadyExists, match=re.escape('workloads.holdfast.dev "web" already exists')):
        await world.create(USER, workload())
    with pytest.raises(BadRequest):
        await world.create(USER, with_meta(made, name="other"))


async def test_generate_name_makes_unique_names(world: World) -> None:
    given = with_meta(workload(), name="", generate_name="job-")
    names = {(await world.create(USER, given)).metadata.name for _ in range(5)}
    assert len(names) == 5
    assert all(re.fullmatch(r"job-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names)


async def test_generation_increases_only_with_spec(world: World) -> None:
    made = await world.create(USER, workload())
    labelled = await world.do(USER, Update(with_meta(made, labels={"a": "b"})))
    assert labelled.metadata.generation == 1
    scaled = await world.do(USER, Update(with_spec(labelled, replicas=3)))
    assert scaled.metadata.generation == 2
    counted = await world.do(
        by("workload-status"), SetStatus("Workload", made.key, made.uid, {"summary": Summary(serving=1)})
    )
    assert counted.metadata.generation == 2
    going = await world.do(USER, Delete("Workload", made.key, made.uid))
    assert going.metadata.generation == 3
    assert going.metadata.deletion_grace_period_seconds == 0


async def test_update_without_change_keeps_revision_and_audit(world: World) -> None:
    made = await world.create(USER, workload())
    head = world.store.head
    records = len(await world.audit())
    again = await world.do(USER, Update(made))
    assert again is made
    equal = with_spec(made, template=msgspec.structs.replace(made.spec.template, resources={"cpu": "1000m"}))
    assert (await world.do(USER, Update(equal))).revision == made.revision, "defaults make it equal"
    assert world.store.head == head
    assert len(await world.audit()) == records


async def test_spec_and_status_updates_do_not_affect_each_other(world: World) -> None:
    made = await world.create(USER, workload())
    lied = msgspec.structs.replace(with_spec(made, replicas=2), status=WorkloadStatus(summary=Summary(serving=5)))
    after = await world.do(USER, Update(lied))
    assert (after.spec.replicas, after.status.summary.serving) == (2, 0)
    updated = msgspec.structs.replace(with_spec(after, replicas=9), status=WorkloadStatus(summary=Summary(serving=5)))
    counted = await world.do(by("workload-status"), Update(updated, subresource="status"))
    assert (counted.spec.replicas, counted.status.summary.serving) == (2, 5)


async def test_update_with_stale_revision_or_uid_is_refused(world: World) -> None:
    made = await world.create(USER, workload())
    await world.do(USER, Update(with_spec(made, replicas=2)))
    with pytest.raises(Conflict, match="the object has been modified; please apply your changes to the latest"):
        await world.do(USER, Update(with_spec(made, replicas=3)))
    with pytest.raises(Invalid, match=re.escape("metadata.resourceVersion")):
        await world.do(USER, Update(with_meta(made, resource_version="")))
    with pytest.raises(Conflict, match="UID in precondition"):
        await world.do(USER, Update(with_meta(made, uid="other")))
    with pytest.raises(NotFound, match=re.escape('workloads.holdfast.dev "gone" not found')):
        await world.do(USER, Update(with_meta(made, name="gone")))


async def test_commit_with_one_invalid_write_stores_nothing(world: World) -> None:
    made = await world.create(USER, workload())
    with pytest.raises(Invalid):
        await world.do(USER, Update(with_spec(made, replicas=2)), Create(workload("a.b")))
    assert world.get(Workload, "web", "shop").spec.replicas == 1
    done = await world.gate.commit(USER, [Update(with_spec(made, replicas=2)), Create(workload("b"))])
    assert [o.metadata.name for o in done.objects if o] == ["web", "b"]
    assert done.revision == max(o.revision for o in done.objects if o)


async def test_two_writes_to_one_object_make_one_revision(world: World) -> None:
    made = await world.create(USER, workload())
    both = msgspec.structs.replace(OPERATOR, roles=frozenset({"operator", "workload-status"}))
    head = world.store.head
    done = await world.gate.commit(
        both,
        [
            SetStatus("Workload", made.key, made.uid, {"summary": Summary(serving=1)}),
            Update(with_spec(made, replicas=2)),
        ],
    )
    assert world.store.head == head + 1
    stored = world.get(Workload, "web", "shop")
    assert (stored.spec.replicas, stored.status.summary.serving) == (2, 1)
    assert done.objects[0] == done.objects[1] == stored


async def test_tenant_and_its_workload_commit_together(world: World) -> None:
    await world.do(OPERATOR, Create(tenant("new")), Create(workload(namespace="new")))
    assert world.get(Workload, "web", "new") is not None


async def test_status_block_of_plain_data_is_converted_or_refused(world: World) -> None:
    made = await world.create(USER, workload())
    updated = await world.do(
        by("workload-status"), SetStatus("Workload", made.key, made.uid, {"summary": {"serving": 2, "ready": 3}})
    )
    assert updated.status.summary == Summary(serving=2, ready=3)
    with pytest.raises(Invalid) as wrong:
        await world.do(by("workload-status"), SetStatus("Workload", made.key, made.uid, {"summary": {"serving": "x"}}))
    assert wrong.value.causes[0].reason == "FieldValueTypeInvalid"
    with pytest.raises(Invalid, match=re.escape("status.nonsense")):
        await world.do(by("workload-status"), SetStatus("Workload", made.key, made.uid, {"nonsense": 1}))


async def test_status_block_set_to_none_is_removed(world: World) -> None:
    made = await world.create(USER, workload())
    scaled = await world.do(by("autoscale"), SetStatus("Workload", made.key, made.uid, {"scale": {"replicas": 4}}))
    assert scaled.status.scale.replicas == 4
    bare = await world.do(by("autoscale"), SetStatus("Workload", made.key, made.uid, {"scale": None}))
    assert bare.status.scale is None


async def test_object_of_wrong_type_is_refused(world: World) -> None:
    with pytest.raises(Invalid) as wrong:
        await world.create(USER, workload(replicas="three"))
    assert wrong.value.causes[0].field == "spec.replicas"
    assert world.get(Workload, "web", "shop") is None


async def test_older_condition_never_replaces_newer(world: World) -> None:
    made = await world.create(USER, workload())
    who = by("workload-status")

    async def set_condition(status: str, generation: int = 0) -> Condition:
        condition = Condition(type="Available", status=status, observed_generation=generation)
        after = await world.do(who, SetStatus("Workload", made.key, made.uid, conditions=(condition,)))
        return of_type(next(c for c in after.status.conditions if c.type == "Available"), Condition)

    first = await set_condition("False")
    world.ports.clock.now_s += 60
    assert (await set_condition("False")).last_transition_time == first.last_transition_time
    second = await set_condition("True", 1)
    assert second.last_transition_time != first.last_transition_time
    await world.do(USER, Update(with_spec(world.get(Workload, "web", "shop"), replicas=2)))
    await set_condition("False", 2)
    assert (await set_condition("True", 1)).status == "False", "an older condition never replaces a newer one"


async def test_observed_generation_never_decreases_nor_exceeds_generation(world: World) -> None:
    made = await world.create(USER, workload())
    who = by("workload-status")
    await world.do(USER, Update(with_spec(made, replicas=2)))
    updated = await world.do(
        who, SetStatus("Workload", made.key, made.uid, {"summary": {"ready": 2}}, observed_generation=2)
    )
    assert updated.status.observed_generation == 2
    with pytest.raises(Conflict, match="expected observedGeneration 2 or newer"):
        await world.do(who, SetStatus("Workload", made.key, made.uid, {"summary": {"ready": 1}}, observed_generation=1))
    assert world.get(Workload, "web", "shop").status.summary.ready == 2
    # The autoscaler owns another block: its older observation neither lowers observedGeneration nor loses its block.
    scaled = await world.do(
        by("autoscale"), SetStatus("Workload", made.key, made.uid, {"scale": {"replicas": 3}}, observed_generation=1)
    )
    assert (scaled.status.observed_generation, scaled.status.scale.replicas) == (2, 3)
    with pytest.raises(Invalid, match="observedGeneration"):
        await world.do(who, SetStatus("Workload", made.key, made.uid, observed_generation=9))


async def test_write_with_stale_if_revision_conflicts(world: World) -> None:
    made = await world.create(USER, workload())
    await world.do(USER, Update(with_spec(made, replicas=2)))
    stale = SetStatus("Workload", made.key, made.uid, {"summary": {"ready": 1}}, if_revision=made.revision)
    with pytest.raises(Conflict):
        await world.do(by("workload-status"), stale)
    with pytest.raises(Conflict):
        await world.do(USER, Delete("Workload", made.key, made.uid, if_revision=made.revision))


async def test_concurrent_status_writes_of_different_blocks_succeed(world: World) -> None:
    made = await world.create(USER, workload())
    writes = [
        world.do(by("workload-status"), SetStatus("Workload", made.key, made.uid, {"summary": {"ready": 1}})),
        world.do(by("autoscale"), SetStatus("Workload", made.key, made.uid, {"scale": {"replicas": 2}})),
        world.do(by("workload-status"), SetStatus("Workload", made.key, made.uid, {"rollout": {"phase": "Done"}})),
        world.do(USER, Update(with_spec(made, replicas=5))),
    ]
    done = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(d, Conflict) for d in done) <= 1
    status = world.get(Workload, "web", "shop").status
    assert (status.summary.ready, status.scale.replicas, status.rollout.phase) == (1, 2, "Done")


async def test_commit_with_stale_fencing_token_is_refused(world: World) -> None:
    term = await world.create(by("assign"), Term(metadata=ObjectMeta(name="global"), spec=TermSpec(holder="a", term=1)))
    token = FencingToken("global", term.revision)
    await world.do(by("assign"), Create(assignment()), token=token)
    await world.do(by("assign"), Update(with_spec(term, holder="b", term=2)))
    held = world.get(Assignment, "web.north.normal", "shop")
    with pytest.raises(StaleToken, match="no longer the leader"):
        await world.do(by("assign"), Update(with_spec(held, replicas=2, epoch=2)), token=token)
    with pytest.raises(StaleToken):
        await world.do(by("assign"), Update(held), token=token)
    assert (await world.audit())[-1].reason == "StaleToken"
    with pytest.raises(Invalid, match="must increase"):
        await world.do(by("assign"), Update(with_spec(world.get(Term, "global"), holder="c", term=1)))


async def test_term_write_by_people_is_forbidden(world: World) -> None:
    for who in (OPERATOR, USER):
        with pytest.raises(Forbidden):
            await world.create(who, Term(metadata=ObjectMeta(name="global"), spec=TermSpec(holder="a")))


async def test_dry_run_validates_and_stores_nothing(world: World) -> None:
    head, records = world.store.head, len(await world.audit())
    shown = await world.do(USER, Create(workload()), dry_run=True)
    assert shown.metadata.uid and shown.metadata.generation == 1
    assert world.store.head == head and len(await world.audit()) == records
    with pytest.raises(Invalid):
        await world.do(USER, Create(workload(replicas=-1)), dry_run=True)


async def test_commit_above_write_limit_is_refused(world: World) -> None:
    with pytest.raises(BadRequest):
        await world.gate.commit(USER, [Create(workload())] * (limits.MAX_WRITES_PER_COMMIT + 1))
    assert (await world.gate.commit(USER, [])).objects == ()


class _AnswerLost(MemoryStore):
    """Loses responses of commits: after the commit, or instead of it."""

    lose = ""

    async def commit(self, txn: Txn) -> Committed:
        lost, self.lose = self.lose, ""
        if lost == "before":
            raise Ambiguous("no answer")
        done = await super().commit(txn)
        if lost == "after":
            raise Ambiguous("no answer")
        return done


@pytest.fixture
def losing() -> _AnswerLost:
    return _AnswerLost()


@pytest.fixture
async def lossy(losing: _AnswerLost) -> World:
    store = losing
    objects = Objects(store, MemoryStore())
    await objects.start()
    made = World("global", store, objects, TestPorts())
    await made.create(OPERATOR, tenant("shop"))
    return made


async def test_ambiguous_commit_is_read_back(
    lossy: World, losing: _AnswerLost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.gate.gate.READ_BACK_TIMEOUT_S", 0.05)
    losing.lose = "after"
    made = await lossy.create(OPERATOR, tenant("known"))
    assert made.revision == losing.head
    assert lossy.get(Tenant, "known") == made
    losing.lose = "before"
    with pytest.raises(Ambiguous):
        await lossy.create(OPERATOR, tenant("unknown"))


async def test_concurrent_writers_on_sqlite_all_succeed(tmp_path: Path) -> None:
    """The store knows of a write before it is published: a losing writer waits for that, then succeeds."""
    store = SqliteStore(tmp_path / "cell.db")
    objects = Objects(store, MemoryStore())
    await objects.start()
    world = World("global", store, objects, TestPorts())
    try:
        await world.create(OPERATOR, tenant("shop"))
        await world.create(
            OPERATOR, PriorityClass(metadata=ObjectMeta(name="standard"), spec=PriorityClassSpec(tenants=("*",)))
        )
        made = await world.create(USER, workload())
        for number in range(1, 6):
            await asyncio.gather(
                world.do(
                    by("workload-status"), SetStatus("Workload", made.key, made.uid, {"summary": {"ready": number}})
                ),
                world.do(by("autoscale"), SetStatus("Workload", made.key, made.uid, {"scale": {"replicas": number}})),
                world.do(
                    by("workload-status"),
                    SetStatus("Workload", made.key, made.uid, {"rollout": {"phase": str(number)}}),
                ),
                world.do(
                    by("workload-status"),
                    SetStatus(
                        "Workload", made.key, made.uid, conditions=(Condition(type=f"C{number}", status="True"),)
                    ),
                ),
            )
        status = world.get(Workload, "web", "shop").status
        assert (status.summary.ready, status.scale.replicas, status.rollout.phase) == (5, 5, "5")
        assert len(status.conditions) == 5
    finally:
        await world.gate.close()
        await objects.close()
        await store.close()


async def test_event_writes_are_audited(world: World) -> None:
    about = ObjectReference(kind="Workload", name="web", namespace="shop", uid="u")
    made = await world.create(
        USER, Event(metadata=ObjectMeta(name="e", namespace="shop"), involved_object=about, count=1)
    )
    more = await world.do(USER, Update(msgspec.structs.replace(made, count=2)))
    assert (more.count, more.metadata.generation) == (2, 0)
    assert await world.do(USER, Delete("Event", made.key, made.uid)) is None
    records = [r for r in await world.audit() if r.resource == "events/shop"]
    assert [(r.verb, r.result, r.count) for r in records] == [(v, "Allowed", 1) for v in ("create", "update", "delete")]
    assert {r.message for r in records} == {"about Workload shop/web"} and {r.principal for r in records} == {USER.name}
    with pytest.raises(BadRequest, match="commit them separately"):
        await world.do(USER, Create(with_meta(made, name="f", resource_version="")), Create(workload()))
