"""Each sentence of the store contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.expected import present
from tests.store.conformance.conftest import Subject

from holdfast.model import limits
from holdfast.model.errors import BadRequest, Conflict, Expired, Unavailable
from holdfast.store.contract import Append, Change, Compare, Put, Remove, Store, StoredEntry, Txn


def puts(*pairs: tuple[str, bytes]) -> Txn:
    return Txn(writes=tuple(Put(key, value) for key, value in pairs))


async def put(store: Store, key: str, value: bytes = b"x") -> int:
    return (await store.commit(puts((key, value)))).revision


async def next_item(watch: AsyncIterator[Sequence[Change]]) -> Sequence[Change]:
    return await asyncio.wait_for(anext(watch), 5)


async def is_quiet(watch: AsyncIterator[Sequence[Change]]) -> bool:
    """Whether a watch has nothing to deliver, on a store that has published everything."""
    try:
        await asyncio.wait_for(anext(watch), 0.05)
    except TimeoutError:
        return True
    return False


async def collect(watch: AsyncIterator[Sequence[Change]], through: int) -> list[Change]:
    changes: list[Change] = []
    while not changes or changes[-1].revision < through:
        changes += await next_item(watch)
    return changes


# Revisions


async def test_new_store_is_empty_at_revision_0(store: Store) -> None:
    assert (store.head, store.compacted) == (0, 0)
    page = await store.range("")
    assert (page.entries, page.revision, page.more) == ((), 0, False)


async def test_revisions_are_positive_and_increase(store: Store) -> None:
    revisions = [await put(store, f"/k/{i % 3}") for i in range(10)]
    assert revisions[0] > 0
    assert revisions == sorted(set(revisions))
    assert store.head == revisions[-1]


async def test_each_write_has_revision_in_write_order(store: Store) -> None:
    committed = await store.commit(puts(("/b", b"1"), ("/a", b"2"), ("/c", b"3")))
    assert len(committed.revisions) == 3
    assert list(committed.revisions) == sorted(committed.revisions)
    assert len(set(committed.revisions)) == 3
    assert committed.revision == committed.revisions[-1] == store.head
    assert present(await store.get("/a")).revision == committed.revisions[1]


async def test_created_revision_is_that_of_first_write_since_removal(store: Store) -> None:
    first = await put(store, "/k")
    second = await put(store, "/k", b"y")
    entry = present(await store.get("/k"))
    assert (entry.created, entry.revision, entry.value) == (first, second, b"y")
    await store.commit(Txn(writes=(Remove("/k"),)))
    again = await put(store, "/k")
    assert present(await store.get("/k")).created == again


async def test_commit_without_writes_returns_head(store: Store) -> None:
    head = await put(store, "/k")
    assert await store.commit(Txn(compares=(Compare("/k", head),))) == await store.commit(Txn())
    assert (await store.commit(Txn())).revision == head == store.head


async def test_removal_of_missing_key_changes_nothing(store: Store) -> None:
    head = await put(store, "/k")
    committed = await store.commit(Txn(writes=(Remove("/missing"),)))
    assert (committed.revision, len(committed.revisions), store.head) == (head, 1, head)
    assert await is_quiet(store.watch("", after=head))


async def test_commit_with_duplicate_key_is_refused(store: Store) -> None:
    with pytest.raises(BadRequest, match="twice"):
        await store.commit(Txn(writes=(Put("/k", b"1"), Remove("/k"))))
    with pytest.raises(BadRequest, match="split"):
        await store.commit(puts(*((f"/k/{i}", b"") for i in range(store.max_writes + 1))))
    assert store.head == 0


# Atomic, compare-and-swap


async def test_failed_compare_changes_nothing(store: Store) -> None:
    at = await put(store, "/a")
    await put(store, "/b")
    watch = store.watch("", after=store.head)
    before = await store.range("")
    for wrong in (Compare("/a", store.head), Compare("/a", at + 2**40), Compare("/a", 0), Compare("/missing", 7)):
        with pytest.raises(Conflict) as conflict:
            await store.commit(
                Txn(
                    compares=(Compare("/a", at), wrong),
                    writes=(Put("/c", b"no"), Remove("/b")),
                    appends=(Append("audit", b"no"),),
                )
            )
        assert conflict.value.facts["key"] == wrong.key
        assert conflict.value.facts["expected"] == wrong.revision
    assert await store.range("") == before
    assert await store.read_log("audit") == ()
    assert await is_quiet(watch)


async def test_compare_with_0_requires_missing_key(store: Store) -> None:
    created = await store.commit(Txn(compares=(Compare("/k", 0),), writes=(Put("/k", b"1"),)))
    with pytest.raises(Conflict):
        await store.commit(Txn(compares=(Compare("/k", 0),), writes=(Put("/k", b"2"),)))
    await store.commit(Txn(compares=(Compare("/k", created.revision),), writes=(Remove("/k"),)))
    await store.commit(Txn(compares=(Compare("/k", 0),), writes=(Put("/k", b"3"),)))
    assert present(await store.get("/k")).value == b"3"


async def test_exactly_one_of_racing_writers_wins(store: Store) -> None:
    at = await put(store, "/k", b"start")
    for _ in range(5):
        txns = [Txn(compares=(Compare("/k", at),), writes=(Put("/k", b"%d" % i),)) for i in range(8)]
        results = await asyncio.gather(*map(store.commit, txns), return_exceptions=True)
        won = [result for result in results if not isinstance(result, BaseException)]
        assert len(won) == 1
        assert all(isinstance(result, Conflict) for result in results if result not in won)
        at = won[0].revision


async def test_losing_writer_can_read_the_winning_value(store: Store) -> None:
    """Otherwise a loser would read the old state, decide the same, and spin until the winner is on disk."""
    at = await put(store, "/k", b"0")

    async def write(value: bytes) -> bytes:
        """Returns the value that a losing writer reads."""
        try:
            await store.commit(Txn(compares=(Compare("/k", at),), writes=(Put("/k", value),)))
        except Conflict:
            return present(await store.get("/k")).value
        return value

    one, other = await asyncio.gather(write(b"1"), write(b"2"))
    assert one == other == present(await store.get("/k")).value


async def test_concurrent_writers_get_distinct_revisions(store: Store) -> None:
    async def writer(name: int) -> list[int]:
        return [await put(store, f"/w/{name}/{i}") for i in range(20)]

    per_writer = await asyncio.gather(*map(writer, range(16)))
    assert all(revisions == sorted(revisions) for revisions in per_writer)
    assert len({revision for revisions in per_writer for revision in revisions}) == 16 * 20
    assert len((await store.range("/w/")).entries) == 16 * 20


# Reads


async def test_read_after_commit_returns_new_value(store: Store) -> None:
    for i in range(20):
        at = await put(store, "/k", b"%d" % i)
        assert present(await store.get("/k")).value == b"%d" % i
        assert store.head == at


async def test_commit_in_flight_is_not_visible(store: Store) -> None:
    """Head, reads and watches advance together, and only with the commit."""
    for i in range(30):
        key, head = f"/k/{i}", store.head
        watch = store.watch("/k/", after=head)
        watching = asyncio.ensure_future(anext(watch))
        writing = asyncio.create_task(put(store, key))
        while not writing.done():
            # A store over the network may advance during the call: the result lies between before and after.
            before = store.head > head
            found = await store.get(key) is not None
            assert before <= found <= (store.head > head)
            before = store.head > head
            listed = len((await store.range("/k/")).entries) - i
            assert before <= listed <= (store.head > head)
            assert store.head > head or not watching.done()
            await asyncio.sleep(0)
        assert store.head == await writing
        await watching


async def test_range_is_in_key_order_within_prefix(store: Store) -> None:
    keys = ["/a/2", "/a/10", "/a/1", "/b/1", "/a", "/ab", "/a/é", "/a/\U0001f600", "/a/\uffff", "/a/1/x"]
    for key in keys:
        await put(store, key)
    found = [entry.key for entry in (await store.range("/a/")).entries]
    assert found == sorted(key for key in keys if key.startswith("/a/"))
    assert [entry.key for entry in (await store.range("")).entries] == sorted(keys)


@pytest.mark.parametrize("past", [False, True])
async def test_pages_join_to_list_of_one_revision(store: Store, past: bool) -> None:
    for i in range(25):
        await put(store, f"/k/{i:02}", b"old")
    await put(store, "/l/other")
    whole = await store.range("/k/")
    at = whole.revision if past else None
    after = ""
    joined: list[StoredEntry] = []
    while True:
        page = await store.range("/k/", at=at, after=after, limit=7)
        joined += page.entries
        assert page.revision == whole.revision
        if not page.more:
            break
        assert len(page.entries) == 7
        after = page.entries[-1].key
        if past:
            await store.commit(Txn(writes=(Put("/k/99", b"new"), Put(f"{after}x", b"new"), Remove("/k/20"))))
    assert tuple(joined) == whole.entries


async def test_last_page_has_no_more(store: Store) -> None:
    for i in range(4):
        await put(store, f"/k/{i}")
    assert (await store.range("/k/", limit=4)).more is False
    assert (await store.range("/k/", limit=3)).more is True
    assert (await store.range("/k/", after="/k/3", limit=3)).entries == ()
    assert [e.key for e in (await store.range("/k/", after="/a")).entries] == ["/k/0", "/k/1", "/k/2", "/k/3"]


async def test_read_at_past_revision_returns_past_value(store: Store) -> None:
    first = await put(store, "/k", b"1")
    second = await put(store, "/k", b"2")
    removed = (await store.commit(Txn(writes=(Remove("/k"),)))).revision
    again = await put(store, "/k", b"4")
    for at, value in ((first, b"1"), (second, b"2"), (removed, None), (again, b"4"), (0, None)):
        entry = await store.get("/k", at=at)
        assert (entry.value if entry else None) == value
        assert [e.value for e in (await store.range("/", at=at)).entries] == ([value] if value else [])
        assert (await store.range("/", at=at)).revision == at


async def test_read_at_future_revision_is_refused(store: Store) -> None:
    head = await put(store, "/k")
    with pytest.raises(BadRequest, match="future"):
        await store.get("/k", at=head + 1)
    with pytest.raises(BadRequest, match="future"):
        await store.range("/k", at=head + 1)


# Watches


async def test_watch_delivers_each_change_once_in_order(store: Store) -> None:
    start = await put(store, "/before")
    watch = store.watch("/k/", after=start)
    created = await put(store, "/k/1", b"a")
    updated = await put(store, "/k/1", b"b")
    await put(store, "/other")
    removed = (await store.commit(Txn(writes=(Remove("/k/1"),)))).revision
    changes = await collect(watch, removed)
    assert [(c.key, c.revision, c.entry and c.entry.value, c.previous and c.previous.value) for c in changes] == [
        ("/k/1", created, b"a", None),
        ("/k/1", updated, b"b", b"a"),
        ("/k/1", removed, None, b"b"),
    ]
    assert present(changes[2].previous).created == created
    assert await is_quiet(watch)


async def test_waiting_watch_wakes_on_commit(store: Store) -> None:
    watch = store.watch("/k/", after=0)
    waiting = asyncio.create_task(next_item(watch))
    await asyncio.sleep(0)
    at = await put(store, "/k/1")
    assert [change.revision for change in await waiting] == [at]


async def test_watch_never_splits_a_commit(store: Store) -> None:
    for after_commits in (0, 3):
        start = store.head
        sizes = [min(size, store.max_writes) for size in (1, 5, 2, 900, 700, 3, limits.MAX_WRITES_PER_COMMIT, 1)]
        for n, size in enumerate(sizes):
            await store.commit(puts(*((f"/c/{after_commits}/{n}/{i}", b"") for i in range(size))))
        watch = store.watch("/c/", after=start)
        counts: dict[str, int] = {}
        while sum(counts.values()) < sum(sizes):
            item = await next_item(watch)
            commits = {change.key.split("/")[3] for change in item}
            assert not commits & set(counts), "a commit was split into two items"
            for change in item:
                commit = change.key.split("/")[3]
                counts[commit] = counts.get(commit, 0) + 1
        assert list(counts.values()) == sizes


async def test_watch_can_start_inside_a_commit(store: Store) -> None:
    committed = await store.commit(puts(("/a", b""), ("/b", b""), ("/c", b"")))
    changes = await next_item(store.watch("", after=committed.revisions[0]))
    assert [change.key for change in changes] == ["/b", "/c"]


async def test_watch_from_future_revision_waits_for_it(store: Store) -> None:
    head = await put(store, "/k")
    step = await put(store, "/k", b"") - head
    watch = store.watch("/k", after=head + 3 * step)
    await put(store, "/k", b"1")
    await put(store, "/k", b"2")
    assert await is_quiet(watch)
    at = await put(store, "/k", b"3")
    assert [change.revision for change in await next_item(watch)] == [at]


async def test_cancelled_watch_wait_loses_no_change(store: Store) -> None:
    watch = store.watch("", after=0)
    assert await is_quiet(watch)
    at = await put(store, "/k")
    assert [change.revision for change in await next_item(watch)] == [at]


async def test_watchers_receive_all_changes_independently(store: Store) -> None:
    watches = [store.watch("/k/", after=0) for _ in range(5)]
    for i in range(30):
        await put(store, f"/k/{i}")
    seen = [[change.key for change in await collect(watch, store.head)] for watch in watches]
    assert seen == [[f"/k/{i}" for i in range(30)]] * 5


# Compaction


async def test_compaction_removes_history_and_keeps_current_values(store: Store) -> None:
    for value in (b"1", b"2", b"3"):
        await put(store, "/k", value)
    await put(store, "/gone")
    middle = (await store.commit(Txn(writes=(Remove("/gone"),)))).revision
    last = await put(store, "/k", b"4")
    await store.compact(middle)
    assert store.compacted == middle
    assert present(await store.get("/k")).value == b"4"
    with pytest.raises(Expired):
        await store.get("/k", at=middle - 1)
    with pytest.raises(Expired):
        await store.range("/", at=middle - 1)
    with pytest.raises(Expired):
        await next_item(store.watch("/", after=middle - 1))
    assert present(await store.get("/k", at=middle)).value == b"3"
    assert (await store.get("/gone", at=middle)) is None
    assert [e.key for e in (await store.range("/", at=middle)).entries] == ["/k"]
    (change,) = await next_item(store.watch("/", after=middle))
    assert (change.revision, present(change.entry).value, present(change.previous).value) == (last, b"4", b"3")


async def test_compaction_at_head_is_idempotent_and_future_is_refused(store: Store) -> None:
    for i in range(10):
        await put(store, "/k", b"%d" % i)
    head = store.head
    await store.compact(head)
    await store.compact(head - 3)
    await store.compact(head)
    assert (store.compacted, store.head) == (head, head)
    assert present(await store.get("/k")).value == b"9"
    with pytest.raises(BadRequest):
        await store.compact(head + 1)
    assert await put(store, "/k") > head


async def test_watch_overtaken_by_compaction_expires(store: Store) -> None:
    await put(store, "/k")
    watch = store.watch("/", after=0)
    await next_item(watch)
    for _ in range(5):
        await put(store, "/k")
    await store.compact(store.head)
    with pytest.raises(Expired):
        await next_item(watch)


async def test_key_can_be_recreated_around_compaction(store: Store) -> None:
    for round_ in range(6):
        await store.commit(Txn(compares=(Compare("/k", 0),), writes=(Put("/k", b"%d" % round_), Put("/l", b""))))
        await store.commit(Txn(writes=(Remove("/k"),)))
        if round_ % 2:
            await store.compact(store.head)
    assert await store.get("/k") is None


async def test_commits_succeed_during_compaction(store: Store) -> None:
    for i in range(300):
        await put(store, f"/k/{i % 20}")
    compacting = asyncio.create_task(store.compact(store.head))
    for i in range(50):
        await put(store, f"/k/{i % 20}", b"during")
    await compacting
    assert len((await store.range("/k/")).entries) == 20


# Logs


async def test_log_is_ordered_paged_and_separate(store: Store) -> None:
    for i in range(10):
        await store.commit(Txn(writes=(Put("/k", b""),), appends=(Append("audit", b"%d" % i), Append("other", b"x"))))
    records = await store.read_log("audit")
    assert [record.value for record in records] == [b"%d" % i for i in range(10)]
    sequences = [record.sequence for record in records]
    assert sequences == sorted(set(sequences)) and sequences[0] > 0
    assert await store.read_log("audit", after=sequences[3], limit=2) == records[4:6]
    assert await store.read_log("nothing") == ()


async def test_append_only_commit_keeps_the_revision(store: Store) -> None:
    head = await put(store, "/k")
    assert (await store.commit(Txn(appends=(Append("audit", b"1"),)))).revision == head == store.head
    assert len(await store.read_log("audit")) == 1


async def test_log_position_is_below_every_later_record(subject: Subject, tmp_path: Path) -> None:
    store = await subject.open(tmp_path)
    for i in range(5):
        before = store.log_position
        await store.commit(Txn(appends=(Append("audit", b"%d" % i), Append("audit", b"%d again" % i))))
        assert [r.value for r in await store.read_log("audit", after=before)] == [b"%d" % i, b"%d again" % i]
    await store.trim_log("audit", keep=0)
    before = store.log_position
    if subject.durable:
        await store.close()
        store = await subject.open(tmp_path)
        assert store.log_position >= before
        before = store.log_position
    await store.commit(Txn(appends=(Append("audit", b"new"),)))
    assert [r.value for r in await store.read_log("audit", after=before)] == [b"new"]
    await store.close()


async def test_trim_keeps_newest_records_and_never_reuses_sequence(store: Store) -> None:
    for i in range(10):
        await store.commit(Txn(appends=(Append("audit", b"%d" % i), Append("other", b"%d" % i))))
    last = (await store.read_log("audit"))[-1].sequence
    await store.trim_log("audit", keep=3)
    assert [record.value for record in await store.read_log("audit")] == [b"7", b"8", b"9"]
    await store.trim_log("audit", keep=0)
    assert await store.read_log("audit") == ()
    assert len(await store.read_log("other")) == 10
    await store.commit(Txn(appends=(Append("audit", b"new"),)))
    assert (await store.read_log("audit"))[0].sequence > last


# Attached objects, close, reopen


async def test_attached_object_is_returned_or_dropped(store: Store) -> None:
    attached = object()
    await store.commit(Txn(writes=(Put("/k", b"1", attached),)))
    assert present(await store.get("/k")).attached in (attached, None)
    (change,) = await next_item(store.watch("/", after=0))
    assert present(change.entry).attached in (attached, None)


async def test_closed_store_refuses_all_calls(subject: Subject, tmp_path: Path) -> None:
    store = await subject.open(tmp_path)
    await put(store, "/k")
    watch = store.watch("/", after=store.head)
    waiting = asyncio.create_task(next_item(watch))
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        await put(store, "/k")
    with pytest.raises(Unavailable):
        await store.get("/k")


async def test_close_completes_commits_in_flight(subject: Subject, tmp_path: Path) -> None:
    store = await subject.open(tmp_path)
    tasks = [asyncio.create_task(put(store, f"/k/{i}")) for i in range(20)]
    await asyncio.sleep(0)
    await store.close()
    revisions = await asyncio.gather(*tasks)
    assert sorted(revisions) == list(range(1, 21)) or (not subject.in_process and len(set(revisions)) == 20)


async def test_reopened_store_has_same_content(subject: Subject, tmp_path: Path) -> None:
    if not subject.durable:
        pytest.skip("a volatile store")
    store = await subject.open(tmp_path)
    for i in range(5):
        await put(store, f"/k/{i}")
    await store.commit(Txn(writes=(Remove("/k/2"),), appends=(Append("audit", b"a"),)))
    middle = store.head
    await store.commit(Txn(writes=(Put("/k/2", b"again"), Remove("/k/4"))))
    whole, past = await store.range(""), await store.range("", at=middle)
    changes = await collect(store.watch("", after=0), store.head)
    log = await store.read_log("audit")
    await store.close()

    store = await subject.open(tmp_path)
    assert (await store.range(""), await store.range("", at=middle)) == (whole, past)
    assert await collect(store.watch("", after=0), store.head) == changes
    assert await store.read_log("audit") == log
    head = store.head
    await store.trim_log("audit", keep=0)
    await store.compact(head)
    await store.commit(Txn(writes=tuple(Remove(entry.key) for entry in whole.entries)))
    await store.compact(store.head)
    head = store.head
    await store.close()

    store = await subject.open(tmp_path)
    assert (store.head, store.compacted, (await store.range("")).entries) == (head, head, ())
    assert await put(store, "/k/2") > head
    await store.commit(Txn(appends=(Append("audit", b"b"),)))
    assert (await store.read_log("audit"))[0].sequence > log[-1].sequence
    await store.close()
