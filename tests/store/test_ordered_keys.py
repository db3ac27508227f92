"""Building blocks of stores: ordered keys, and the bounded volatile store."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from holdfast.store import ordered_keys
from holdfast.store.contract import Put, Txn
from holdfast.store.memory import MemoryStore
from holdfast.store.ordered_keys import OrderedKeys, upper_bound

key = st.text(alphabet="ab/é\U0010ffff", max_size=5)


@given(first=st.sets(key), steps=st.lists(key, max_size=60), prefix=key, after=key)
def test_ordered_keys_behave_like_sorted_set(first: set[str], steps: list[str], prefix: str, after: str) -> None:
    size, ordered_keys.BUCKET_KEYS = ordered_keys.BUCKET_KEYS, 3
    try:
        keys, expected = OrderedKeys(first), sorted(first)
        for step in steps:
            if step in expected:
                keys.remove(step)
                expected.remove(step)
            else:
                keys.add(step)
                expected.insert(bisect_left(expected, step), step)
        wanted = [k for k in expected if k.startswith(prefix) and (k > after or after == "")]
        assert (list(keys.walk("")), len(keys)) == (expected, len(expected))
        assert (list(keys.walk(prefix, after)), keys.count(prefix, after)) == (wanted, len(wanted))
    finally:
        ordered_keys.BUCKET_KEYS = size


@given(prefix=st.text(max_size=4), rest=st.text(max_size=3), other=st.text(max_size=6))
def test_upper_bound_separates_prefix_from_larger_keys(prefix: str, rest: str, other: str) -> None:
    bound = upper_bound(prefix)
    assert bound is None or prefix + rest < bound
    if bound is not None and other >= prefix and not other.startswith(prefix):
        assert other >= bound


async def test_bounded_store_removes_least_recently_written_keys() -> None:
    store = MemoryStore(keep=3)
    for name in ("a", "b", "c", "a", "d"):
        await store.commit(Txn(writes=(Put(f"/{name}", b""),)))
    assert [entry.key for entry in (await store.range("")).entries] == ["/a", "/c", "/d"]
    changes = [change for change in await anext(store.watch("", after=0))]
    assert [(change.key, change.entry is None) for change in changes][-1] == ("/b", True)
    for i in range(100):
        await store.commit(Txn(writes=(Put(f"/{i}", b""),)))
    assert len((await store.range("")).entries) == 3
    assert store.head - store.compacted <= 6
