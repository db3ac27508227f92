"""The cache's lists, indexes and totals: complete and in key order, whatever the order of arrival."""

from __future__ import annotations

import random

from tests.factories import assignment, bound_status, replica, with_new_revision

from holdfast.controllers.cache import Cache
from holdfast.model.meta import Key
from holdfast.model.replica import Replica

HELD = assignment()


def test_cache_lists_burst_in_key_order() -> None:
    made = [replica(number, HELD) for number in range(40)]
    shuffled = list(made)
    random.Random(3).shuffle(shuffled)
    cache = Cache()
    for at, item in enumerate(shuffled):
        cache.put(item)
        if at % 7 == 0:
            assert list(cache.list(Replica)) == sorted(shuffled[: at + 1], key=lambda r: r.key)
    assert list(cache.list(Replica)) == sorted(made, key=lambda r: r.key)


def test_cache_removal_from_unsorted_burst_removes_right_object() -> None:
    cache = Cache()
    made = [replica(number, HELD) for number in (5, 3, 9, 1)]
    for item in made:
        cache.put(item)
    cache.remove(Replica, made[1].key, made[-1].revision + 1)
    assert [r.spec.ordinal for r in cache.list(Replica)] == [1, 5, 9]


def test_cache_index_built_late_is_complete_and_follows_changes() -> None:
    cache = Cache()
    first = replica(0, HELD, status=bound_status("n1"))
    cache.put(first)
    cache.put(replica(1, HELD))
    assert cache.by(Replica, "node", "n1") == (first,)
    moved = with_new_revision(first, status=bound_status("n2", attempt=2))
    cache.put(moved)
    assert cache.by(Replica, "node", "n1") == ()
    assert cache.by(Replica, "node", "n2") == (moved,)
    cache.remove(Replica, moved.key, moved.revision + 1)
    assert cache.by(Replica, "node", "n2") == ()
    assert len(cache.by(Replica, "workload", "acme/api")) == 1


def test_cache_lists_single_namespace() -> None:
    cache = Cache()
    other = replica(0, assignment(namespace="rival"))
    cache.put(replica(0, HELD))
    cache.put(other)
    assert cache.list(Replica, "rival") == (other,)
    assert cache.list(Replica, "nobody") == ()
    assert cache.get(Replica, other.metadata.name, "rival") is other
    assert cache.count(Replica) == 2
    assert Key("rival", other.metadata.name) == other.key


def test_cache_total_built_late_is_complete_and_follows_changes() -> None:
    def placed(item: Replica) -> dict[str, int]:
        return {"placed": 1} if item.status.placement.binding else {}

    cache = Cache()
    first = replica(0, HELD)
    cache.put(first)
    assert cache.total(Replica, "acme", placed) == {}
    cache.put(with_new_revision(first, status=bound_status()))
    cache.put(replica(1, HELD, status=bound_status()))
    assert cache.total(Replica, "acme", placed) == {"placed": 2}
    assert cache.total(Replica, "", placed) == {"placed": 2}


def test_cache_index_holds_one_object_and_several_alike() -> None:
    rng = random.Random(5)
    cache = Cache()
    cache.by(Replica, "node", "")  # builds the index
    held: dict[Key, Replica] = {}
    for _ in range(400):
        number, node = rng.randrange(6), rng.choice(("n1", "n2", "n3"))
        item = with_new_revision(replica(number, HELD), status=bound_status(node))
        if rng.random() < 0.3:
            cache.remove(Replica, item.key, item.revision)
            held.pop(item.key, None)
        else:
            cache.put(item)
            held[item.key] = item
        for name in ("n1", "n2"):
            wanted = [r for _, r in sorted(held.items()) if r.status.placement.node == name]
            assert list(cache.by(Replica, "node", name)) == wanted


def test_cache_total_follows_an_object_whose_amount_stays_and_then_changes() -> None:
    def priority(item: Replica) -> dict[int, int]:
        return {item.status.placement.attempt: 1}

    cache = Cache()
    first = replica(0, HELD, status=bound_status("n1"))
    cache.put(first)
    assert cache.total(Replica, "", priority) == {1: 1}
    same = with_new_revision(first, status=bound_status("n2"))
    cache.put(same)
    assert cache.total(Replica, "", priority) == {1: 1}
    cache.put(with_new_revision(same, status=bound_status("n2", attempt=2)))
    assert cache.total(Replica, "", priority) == {2: 1}
    cache.remove(Replica, same.key, cache.list(Replica)[0].revision + 1)
    assert cache.total(Replica, "", priority) == {}
