"""Global decisions: assign, grant, policy, region-health and workload-status."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expected import of_type, only, present
from tests.factories import assignment, cache_of, meta, priority, region, tenant, with_new_revision, workload

from holdfast.fleet import assign, policy, region_health, workload_status
from holdfast.fleet.quota_division import divide_quota
from holdfast.model.assignment import Assignment, AssignmentStatus, PendingReason
from holdfast.model.meta import Key
from holdfast.model.placement_rules import PlacementRules
from holdfast.model.region import HealthState, RegionReport
from holdfast.model.scheduler_policy import PolicyRevision, SchedulerPolicy
from holdfast.model.template import template_hash
from holdfast.model.workload import Batch, WorkloadType
from holdfast.model.writes import Create, Delete, SetStatus, Update

THREE = (region("eu-central", residency=("eu",)), region("eu-west", residency=("eu",)), region("us-east"))
COMMON = (tenant(), priority())


def test_deleted_workload_is_drained_everywhere_before_removal() -> None:
    wl = workload(replicas=2)
    wl = with_new_revision(wl, metadata=msgspec.structs.replace(wl.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    there = assignment(replicas=2)
    (shrink,) = assign.decide(wl.key, cache_of(wl, there), 1.0).writes
    assert isinstance(shrink, Update) and isinstance(shrink.object, Assignment)
    assert shrink.object.spec.replicas == 0 and shrink.object.spec.epoch == 2
    busy = with_new_revision(shrink.object, status=AssignmentStatus(observed_epoch=2, replicas=1))
    assert assign.decide(wl.key, cache_of(wl, busy), 2.0).writes == ()
    empty = with_new_revision(busy, status=AssignmentStatus(observed_epoch=2, replicas=0))
    (gone,) = assign.decide(wl.key, cache_of(wl, empty), 3.0).writes
    assert isinstance(gone, Delete)
    (free,) = assign.decide(wl.key, cache_of(wl), 4.0).writes
    assert isinstance(free, Update) and free.object.metadata.finalizers == ()


def test_batch_is_divided_by_completions() -> None:
    wl = workload(type=WorkloadType.BATCH, batch=Batch(completions=5, parallelism=2), replicas=1)
    (write,) = [w for w in assign.decide(wl.key, cache_of(wl, *THREE, *COMMON), 1.0).writes]
    spec = of_type(of_type(write, Create).object, Assignment).spec
    assert present(spec.batch).completions == 5 and spec.replicas == 2


def test_serving_condition_needs_the_newest_generation() -> None:
    wl = workload(replicas=2)
    good = AssignmentStatus(observed_epoch=1, replicas=2, bound=2, ready=2, serving=2)
    write = only(
        workload_status.decide(wl.key, cache_of(wl, assignment(replicas=2, status=good)), 1.0).writes, SetStatus
    )
    conditions = {c.type: c for c in write.conditions}
    assert conditions["Serving"].status == "True" and write.observed_generation == 1
    newer = with_new_revision(wl, metadata=msgspec.structs.replace(wl.metadata, generation=2))
    write = only(
        workload_status.decide(wl.key, cache_of(newer, assignment(replicas=2, status=good)), 1.0).writes, SetStatus
    )
    assert {c.type: c.status for c in write.conditions}["Serving"] == "False"


def served(count: int, **more: Any) -> AssignmentStatus:
    """Report of a region in which `count` replicas of the default template exist and serve."""
    counts = dict.fromkeys(("replicas", "bound", "started", "ready", "serving", "updated", "updated_serving"), count)
    revision = assignment().spec.revision
    return AssignmentStatus(**{"observed_epoch": 1, "revision": revision, **counts, **more})


def test_workload_that_serves_elsewhere_is_serving_after_a_region_is_excluded() -> None:
    """The excluded region may be unreachable, so that its last report stays. It says nothing about the workload."""
    wl = workload(replicas=3, template=assignment().spec.template)
    there = assignment("api", "eu-west", replicas=3, status=served(3))
    left = assignment("api", "us-east", replicas=0, status=served(2, observed_epoch=0))
    write = only(workload_status.decide(wl.key, cache_of(wl, there, left), 1.0).writes, SetStatus)
    (found,) = [c for c in write.conditions if c.type == "Serving"]
    assert (found.status, found.reason) == ("True", "AllServing")


def test_enough_serving_replicas_of_an_older_generation_are_not_called_some() -> None:
    wl = workload(replicas=3, template=assignment().spec.template)
    stays = assignment("api", "eu-west", replicas=3, status=served(1))
    leaves = assignment("api", "us-east", replicas=0, status=served(2))
    write = only(workload_status.decide(wl.key, cache_of(wl, stays, leaves), 1.0).writes, SetStatus)
    (found,) = [c for c in write.conditions if c.type == "Serving"]
    assert (found.status, found.reason) == ("False", "UpdatePending")
    assert "3 of 3 replicas serve; us-east serves replicas that leave it" in found.message
    newer = with_new_revision(wl, metadata=msgspec.structs.replace(wl.metadata, generation=2))
    old = assignment("api", "eu-west", replicas=3, status=served(3))
    write = only(workload_status.decide(wl.key, cache_of(newer, old), 1.0).writes, SetStatus)
    (found,) = [c for c in write.conditions if c.type == "Serving"]
    assert found.reason == "UpdatePending" and "eu-west has not applied the newest generation" in found.message


class Shrinking:
    """A workload with five serving replicas in one region, scaled down to three."""

    def __init__(self) -> None:
        made = workload(replicas=5, template=assignment().spec.template)
        self.workload = made
        self.here = assignment(replicas=5, status=served(5))
        self.serving_status()

    def serving_status(self) -> str:
        for write in workload_status.decide(self.workload.key, cache_of(self.workload, self.here), 1.0).writes:
            assert isinstance(write, SetStatus)
            status = msgspec.structs.replace(
                self.workload.status, summary=write.blocks["summary"], conditions=write.conditions
            )
            self.workload = with_new_revision(self.workload, status=status)
        return {c.type: c.status for c in self.workload.status.conditions}["Serving"]

    def scale(self, replicas: int, **spec: Any) -> None:
        old = self.workload
        generation = msgspec.structs.replace(old.metadata, generation=old.metadata.generation + 1)
        wanted = msgspec.structs.replace(old.spec, replicas=replicas, **spec)
        self.workload = with_new_revision(old, metadata=generation, spec=wanted)

    def assign(self, **spec: Any) -> None:
        generation = self.workload.metadata.generation
        spec = {"workload_generation": generation, "epoch": self.here.spec.epoch + 1, **spec}
        self.here = with_new_revision(self.here, spec=msgspec.structs.replace(self.here.spec, **spec))

    def report(self, **status: Any) -> None:
        self.here = with_new_revision(self.here, status=msgspec.structs.replace(self.here.status, **status))


def test_serving_condition_stays_true_while_scaling_down() -> None:
    there = Shrinking()
    assert there.serving_status() == "True"
    there.scale(3)
    assert there.serving_status() == "True", "assign has not acted yet"
    there.assign(replicas=3)
    assert there.serving_status() == "True", "the region has not received it"
    there.report(observed_epoch=2, serving=3, updated_serving=3, ready=3)
    assert there.serving_status() == "True", "two of them are stopping"
    there.report(**{name: getattr(served(3), name) for name in ("replicas", "bound", "started", "updated")})
    assert there.serving_status() == "True"
    assert {c.type: c.message for c in there.workload.status.conditions}["Serving"] == "3 of 3 replicas serve"


def test_serving_condition_is_false_if_too_few_serve_while_scaling_down() -> None:
    there = Shrinking()
    there.scale(3)
    there.assign(replicas=3)
    there.report(observed_epoch=2, serving=2, updated_serving=2, ready=2)
    assert there.serving_status() == "False"


@pytest.mark.parametrize("acted", [False, True])
def test_serving_condition_waits_for_a_new_template_while_scaling_down(acted: bool) -> None:
    there = Shrinking()
    other = msgspec.structs.replace(there.workload.spec.template, command=("another",))
    there.scale(3, template=other)
    if acted:
        there.assign(replicas=3, template=other, revision=template_hash(other))
    assert there.serving_status() == "False"


def test_serving_condition_stays_false_until_the_region_has_scaled_down() -> None:
    there = Shrinking()
    there.report(serving=4, updated_serving=4, ready=4)
    assert there.serving_status() == "False"
    there.scale(3)
    assert there.serving_status() == "False"
    there.assign(replicas=3)
    there.report(observed_epoch=2, **{n: 3 for n in ("replicas", "bound", "serving", "updated_serving", "ready")})
    assert there.serving_status() == "True"


def test_serving_condition_names_pending_reasons() -> None:
    wl = workload(replicas=1)
    waiting = AssignmentStatus(
        observed_epoch=1, replicas=1, queued=1, pending=(PendingReason(reason="InsufficientCpu", count=1),)
    )
    write = only(
        workload_status.decide(wl.key, cache_of(wl, assignment(replicas=1, status=waiting)), 1.0).writes, SetStatus
    )
    assert "InsufficientCpu" in {c.type: c.message for c in write.conditions}["Serving"]


def test_assigned_condition_of_unassigned_workload_has_reason() -> None:
    nowhere = workload(replicas=2, placement=PlacementRules(regions=("moon",)))
    silent = region("eu-west", state=HealthState.LOST)
    for wl, there, reason, named in (
        (nowhere, THREE[0], "NoRegionAllowed", "not in spec.placement.regions"),
        (workload(replicas=2), silent, "RegionNotHealthy", silent.metadata.name),
        (workload(replicas=2), THREE[0], "PartlyAssigned", "0 of 2"),
    ):
        write = only(workload_status.decide(wl.key, cache_of(wl, there), 1.0).writes, SetStatus)
        assigned = {c.type: c for c in write.conditions}["Assigned"]
        assert assigned.reason == reason and named in assigned.message


amounts = st.integers(0, 20)
regions = st.sampled_from(["a", "b", "c"])
tables = st.dictionaries(regions, st.fixed_dictionaries({"cpu": amounts}), max_size=3)


@given(hard=amounts, wanted=tables, shrinks=st.lists(st.tuples(regions, amounts), max_size=6))
def test_grants_never_exceed_the_quota_for_any_acknowledgement(
    hard: int, wanted: dict[str, dict[str, int]], shrinks: list[tuple[str, int]]
) -> None:
    """Regions apply their grants at different times; the sum of enforced limits never exceeds the quota."""
    names = ("a", "b", "c")
    full = {n: wanted.get(n, {}) for n in names}
    current: dict[str, dict[str, int]] = {}
    enforced: dict[str, dict[str, int]] = {}
    for where, demand in [("a", 0), *shrinks]:
        full[where] = {"cpu": demand} if demand else full[where]
        current = divide_quota({"cpu": hard}, {}, full, current, enforced)
        spendable = sum(max(current.get(n, {}).get("cpu", 0), enforced.get(n, {}).get("cpu", 0)) for n in names)
        assert spendable <= hard
        enforced = {**enforced, where: dict(current.get(where, {}))}  # only one region has applied its grant
        assert sum(e.get("cpu", 0) for e in enforced.values()) <= hard


def test_grant_is_raised_only_after_another_region_acknowledges_less() -> None:
    hard, wanted = {"cpu": 10}, {"a": {"cpu": 2}, "b": {"cpu": 8}}
    new = divide_quota(hard, {}, wanted, {"a": {"cpu": 10}}, {"a": {"cpu": 10}})
    assert new == {"a": {"cpu": 2}, "b": {}}
    later = divide_quota(hard, {}, wanted, new, {"a": {"cpu": 2}})
    assert later == {"a": {"cpu": 2}, "b": {"cpu": 8}}


def test_raised_limit_grows_while_the_quota_is_ample() -> None:
    """The growth comes from unneeded quota, at most as much again, and goes to a region that needs it."""
    hard = {"cpu": 1_000_000}
    first = divide_quota(hard, {}, {"a": {"cpu": 200}, "b": {}}, {}, {}, grows=True)
    assert first == {"a": {"cpu": 400}, "b": {}}
    kept = divide_quota(hard, {}, {"a": {"cpu": 400}, "b": {}}, first, first, grows=True)
    assert kept == first, "the next replicas need no new limit"
    grown = divide_quota(hard, {}, {"a": {"cpu": 600}, "b": {}}, first, first, grows=True)
    assert grown == {"a": {"cpu": 1_200}, "b": {}}
    capped = divide_quota(hard, {"a": {"cpu": 300}}, {"a": {"cpu": 200}, "b": {}}, {}, {}, grows=True)
    assert capped == {"a": {"cpu": 300}, "b": {}}
    scarce = divide_quota({"cpu": 1_300}, {}, {"a": {"cpu": 600}, "b": {"cpu": 600}}, grown, grown, grows=True)
    assert scarce["a"] == {"cpu": 700} and scarce["b"] == {"cpu": 100}, "growth is withdrawn for another region"
    small = divide_quota({"cpu": 1_000}, {}, {"a": {"cpu": 200}, "b": {}}, {}, {}, grows=True)
    assert small == {"a": {"cpu": 200}, "b": {}}, "a small quota is not held back"


@given(hard=st.integers(0, 5_000), wanted=tables, shrinks=st.lists(st.tuples(regions, amounts), max_size=6))
def test_growth_never_exceeds_the_quota(
    hard: int, wanted: dict[str, dict[str, int]], shrinks: list[tuple[str, int]]
) -> None:
    full = {name: wanted.get(name, {}) for name in ("a", "b", "c")}
    current: dict[str, dict[str, int]] = {}
    for where, demand in shrinks:
        full[where] = {"cpu": demand}
        new = divide_quota({"cpu": hard}, {}, full, current, current, grows=True)
        counted = {name: max(new[name].get("cpu", 0), current.get(name, {}).get("cpu", 0)) for name in full}
        assert sum(counted.values()) <= hard
        current = new


def test_returning_to_old_rules_increases_the_sequence() -> None:
    first = SchedulerPolicy(metadata=meta("default"))
    created = [w.object for w in policy.decide(first.key, cache_of(first), 1.0).writes if isinstance(w, Create)]
    (one,) = created
    assert isinstance(one, PolicyRevision) and one.spec.sequence == 1
    stored = with_new_revision(one, metadata=meta(one.metadata.name))
    other = with_new_revision(
        stored, metadata=meta("default-other"), spec=msgspec.structs.replace(stored.spec, sequence=2)
    )
    status = msgspec.structs.replace(first.status, revision="default-other", sequence=2)
    back = with_new_revision(first, status=status)
    writes = policy.decide(first.key, cache_of(back, stored, other), 2.0).writes
    assert [of_type(w.object, PolicyRevision).spec.sequence for w in writes if isinstance(w, Update)] == [3]


def test_region_health_uses_only_the_global_clock() -> None:
    there = region("us-east")
    skewed = with_new_revision(
        there, status=msgspec.structs.replace(there.status, report=RegionReport(at="1999-01-01T00:00:00Z", sequence=7))
    )
    write = only(region_health.decide(Key("", "us-east"), cache_of(skewed), 1000.0).writes, SetStatus)
    health = write.blocks["health"]
    assert health.state is HealthState.HEALTHY and health.last_sequence == 7
    silent = with_new_revision(skewed, status=msgspec.structs.replace(skewed.status, health=health))
    write = only(region_health.decide(Key("", "us-east"), cache_of(silent), 1030.0).writes, SetStatus)
    assert write.blocks["health"].state is HealthState.SUSPECT
    write = only(region_health.decide(Key("", "us-east"), cache_of(silent), 1100.0).writes, SetStatus)
    assert write.blocks["health"].state is HealthState.AWAITING_WITNESS
