"""Totals of cache and view: equal to a recount, and including the writes of the current pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.expected import present

from holdfast.controllers.cache import Cache
from holdfast.controllers.declared_view import DeclaredView
from holdfast.model.meta import Key, ObjectMeta
from holdfast.model.priority_class import PriorityClass, PriorityClassSpec
from holdfast.model.replica import ReleaseBlock, Replica, ReplicaSpec
from holdfast.model.template import Template
from holdfast.model.tenant import Tenant
from holdfast.model.writes import Create, Delete, SetStatus, Update

SPEC = ReplicaSpec(workload="w", workload_uid="w", assignment="w", revision="1", template=Template())


def by_priority(item: PriorityClass) -> dict[str, int]:
    return {"priority": item.spec.priority}


def class_with_priority(name: str, rank: int, revision: int, namespace: str = "t") -> PriorityClass:
    meta = ObjectMeta(name=name, namespace=namespace, uid=name, resource_version=str(revision))
    return PriorityClass(meta, PriorityClassSpec(priority=rank))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(("t", "u")), st.integers(0, 5), st.booleans()), max_size=30
    )
)
def test_cache_total_equals_recount(steps: list[tuple[str, str, int, bool]]) -> None:
    cache = Cache()
    for revision, (name, namespace, rank, removed) in enumerate(steps, 1):
        if removed:
            cache.remove(PriorityClass, Key(namespace, name), revision)
        else:
            cache.put(class_with_priority(name, rank, revision, namespace))
        for where in ("t", "u", ""):
            counted = sum(item.spec.priority for item in cache.list(PriorityClass, where))
            assert cache.total(PriorityClass, where, by_priority).get("priority", 0) == counted


def test_view_totals_include_writes_of_current_pass() -> None:
    cache = Cache()
    cache.put(class_with_priority("a", 5, 1))
    view = DeclaredView("test", cache, frozenset({PriorityClass}))
    assert view.total(PriorityClass, "t", by_priority) == {"priority": 5}
    view.assume(
        [
            Create(class_with_priority("b", 2, 0)),
            Update(class_with_priority("a", 1, 1)),
            Delete("PriorityClass", Key("t", "x"), "x"),
        ]
    )
    assert view.total(PriorityClass, "t", by_priority) == {"priority": 3}
    assert view.total(PriorityClass, "", by_priority) == {"priority": 3}, "also for a measure first read later"
    assert view.get(PriorityClass, "b", "t") is None, "reads of objects ignore writes of the pass"
    view.begin_pass()
    assert view.total(PriorityClass, "t", by_priority) == {"priority": 5}


def test_view_shows_statuses_set_earlier_in_the_pass_only_if_declared() -> None:
    cache = Cache()
    for name, uid in (("a", "1"), ("b", "2")):
        cache.put(Replica(ObjectMeta(name=name, namespace="t", uid=uid, resource_version="1"), SPEC))
    block = ReleaseBlock(attempt=1, reason="Drained")
    write = SetStatus("Replica", Key("t", "a"), "1", blocks={"release": block})
    stale = SetStatus("Replica", Key("t", "b"), "another", blocks={"release": block})

    def leaving(replica: Replica) -> dict[str, int]:
        return {"leaving": int(replica.status.release is not None)}

    for visible in (False, True):
        view = DeclaredView("test", cache, frozenset({Replica}), sees_earlier_statuses=visible)
        view.assume([write, stale])
        found = view.get(Replica, "a", "t")
        assert found is not None and (found.status.release == block) is visible
        assert [r.status.release is not None for r in view.list(Replica, "t")] == [visible, False]
        assert [r.status.release is not None for r in view.by(Replica, "workload", "t/w")] == [visible, False]
        assert view.total(Replica, "t", leaving).get("leaving", 0) == int(visible)
        view.begin_pass()
        assert present(view.get(Replica, "a", "t")).status.release is None, "the next pass starts from stored state"


def test_view_total_of_undeclared_kind_raises_lookup_error() -> None:
    with pytest.raises(LookupError, match="not in its wakes or reads"):
        DeclaredView("test", Cache(), frozenset({PriorityClass})).total(Tenant, "", by_priority)


def test_a_controller_of_one_cell_cannot_read_another() -> None:
    with pytest.raises(LookupError, match="peer_wakes"):
        _ = DeclaredView("serve", Cache(), frozenset({Tenant})).peer
