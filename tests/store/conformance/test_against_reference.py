"""Random operations compared with a reference that keeps a list of commits and computes every result from it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.counted_store import CountedStore
from tests.store.conformance.conftest import Subject

from holdfast.model.errors import BadRequest, Conflict, Expired
from holdfast.store.contract import Append, Change, Compare, Put, Remove, StoredEntry, Txn

KEYS = ["/a", "/a/1", "/a/2", "/a/2/x", "/ab", "/b/1", "/b/é"]
PREFIXES = ["", "/a", "/a/", "/a/2", "/b/", "/z"]


class Reference:
    """Every change, oldest first. Slow and simple."""

    def __init__(self) -> None:
        self.commits: list[list[Change]] = []
        self.log: list[bytes] = []
        self.compacted = 0

    @property
    def head(self) -> int:
        return self.commits[-1][-1].revision if self.commits else 0

    def state(self, at: int) -> dict[str, StoredEntry]:
        found: dict[str, StoredEntry] = {}
        for change in self.changes(0):
            if change.revision > at:
                break
            if change.entry is None:
                del found[change.key]
            else:
                found[change.key] = change.entry
        return found

    def changes(self, after: int) -> list[Change]:
        return [change for commit in self.commits for change in commit if change.revision > after]

    def conflicts(self, txn: Txn) -> bool:
        now = self.state(self.head)
        return any(
            (now[compare.key].revision if compare.key in now else 0) != compare.revision for compare in txn.compares
        )

    def commit(self, txn: Txn) -> None:
        now, revision, made = self.state(self.head), self.head, []
        for write in txn.writes:
            old = now.get(write.key)
            if isinstance(write, Remove):
                if old is not None:
                    revision += 1
                    made.append(Change(write.key, revision, None, old))
            else:
                revision += 1
                # As `Counted` shows it: the first change of the commit that made the key.
                entry = StoredEntry(write.key, write.value, revision, old.created if old else self.head + 1)
                made.append(Change(write.key, revision, entry, old))
        if made:
            self.commits.append(made)
        self.log += [append.value for append in txn.appends]


key = st.sampled_from(KEYS)
write = st.one_of(st.builds(Put, key, st.binary(max_size=3), st.none()), st.builds(Remove, key))
writes = st.lists(write, max_size=5, unique_by=lambda w: w.key).map(tuple)
fraction = st.floats(0, 1)
operation = st.one_of(
    # Compares use the actual revision of a key, or a wrong one.
    st.tuples(st.just("commit"), writes, st.lists(st.tuples(key, st.sampled_from([0, 0, 0, 0, -1, 1])), max_size=3)),
    st.tuples(st.just("append"), st.binary(max_size=3)),
    st.tuples(st.just("together"), st.lists(writes, min_size=2, max_size=6)),
    st.tuples(st.just("get"), key, fraction),
    st.tuples(st.just("pages"), st.sampled_from(PREFIXES), fraction, st.integers(1, 3)),
    st.tuples(st.just("watch"), st.sampled_from(PREFIXES), fraction),
    st.tuples(st.just("compact"), fraction),
    st.tuples(st.just("reopen")),
)


class Run:
    def __init__(self, subject: Any, place: Path) -> None:
        self.subject, self.place, self.reference = subject, place, Reference()

    async def all(self, operations: list[tuple[Any, ...]]) -> None:
        self.store = CountedStore(await self.subject.open(self.place))
        try:
            for name, *arguments in operations:
                await getattr(self, name)(*arguments)
                assert (self.store.head, self.store.compacted) == (self.reference.head, self.reference.compacted)
                state = self.reference.state(self.reference.head)
                assert list((await self.store.range("")).entries) == [state[key] for key in sorted(state)]
        finally:
            await self.store.close()

    async def commit(self, writes: tuple[Put | Remove, ...], compared: list[tuple[str, int]]) -> None:
        state = self.reference.state(self.reference.head)
        compares = tuple(Compare(k, max(0, (state[k].revision if k in state else 0) + off)) for k, off in compared)
        txn = Txn(compares, writes)
        if self.reference.conflicts(txn):
            try:
                await self.store.commit(txn)
            except Conflict:
                return
            raise AssertionError("a conflict was not noticed")
        self.reference.commit(txn)
        await self.store.commit(txn)

    async def append(self, value: bytes) -> None:
        txn = Txn(appends=(Append("log", value),))
        self.reference.commit(txn)
        await self.store.commit(txn)
        assert [record.value for record in await self.store.read_log("log")] == self.reference.log

    async def together(self, several: list[tuple[Put | Remove, ...]]) -> None:
        """Concurrent commits keep the order in which they were issued."""
        txns = [Txn(writes=own) for own in several]
        for txn in txns:
            self.reference.commit(txn)
        if self.subject.in_process:
            await asyncio.gather(*map(self.store.commit, txns))
        else:
            for txn in txns:
                await self.store.commit(txn)

    async def get(self, key: str, where: float) -> None:
        at = self._at(where)
        try:
            found = await self.store.get(key, at=at)
        except Expired:
            assert at < self.reference.compacted
        except BadRequest:
            assert at > self.reference.head
        else:
            assert found == self.reference.state(at).get(key)

    async def pages(self, prefix: str, where: float, limit: int) -> None:
        at, after, more = self._at(where), "", True
        found: list[StoredEntry] = []
        while more:
            try:
                page = await self.store.range(prefix, at=at, after=after, limit=limit)
            except Expired:
                assert at < self.reference.compacted
                return
            except BadRequest:
                assert at > self.reference.head
                return
            found += page.entries
            more, after = page.more, page.entries[-1].key if page.entries else after
            assert page.revision == at
        state = self.reference.state(at)
        assert found == [state[k] for k in sorted(state) if k.startswith(prefix)]

    async def watch(self, prefix: str, where: float) -> None:
        after = min(self._at(where), self.reference.head)
        expected = [change for change in self.reference.changes(after) if change.key.startswith(prefix)]
        found: list[Change] = []
        watch = self.store.watch(prefix, after=after)
        try:
            while len(found) < len(expected) or after < self.reference.compacted:
                found += await asyncio.wait_for(anext(watch), 5)
        except Expired:
            assert after < self.reference.compacted
        else:
            assert found == expected

    async def compact(self, where: float) -> None:
        at = min(self._at(where), self.reference.head)
        await self.store.compact(at)
        self.reference.compacted = max(self.reference.compacted, at)

    async def reopen(self) -> None:
        if self.subject.durable:
            await self.store.close()
            self.store.store = await self.subject.open(self.place)

    def _at(self, where: float) -> int:
        """Any revision from 0 to just beyond the head."""
        return round(where * (self.reference.head + 1))


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all examples: a gRPC channel needs the loop it was created on."""
    with asyncio.Runner() as made:
        yield made


def check(runner: asyncio.Runner, subject: Subject, operations: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        runner.run(Run(subject, Path(place)).all(operations))


PROVE = bool(os.environ.get("HOLDFAST_PROVE"))
quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
histories = st.lists(operation, min_size=8, max_size=40)


@settings(max_examples=400 if PROVE else 40, deadline=None, suppress_health_check=quiet)
@given(operations=histories)
@pytest.mark.parametrize("subject", ["memory", "sqlite"], indirect=True)
def test_random_operations_match_reference(
    runner: asyncio.Runner, subject: Subject, operations: list[tuple[Any, ...]]
) -> None:
    check(runner, subject, operations)


@settings(max_examples=100 if PROVE else 25, deadline=None, suppress_health_check=quiet)
@given(operations=histories)
@pytest.mark.slow
@pytest.mark.parametrize("subject", ["etcd", "etcd-3", "etcd-3.5"], indirect=True)
def test_random_operations_on_cluster_match_reference(
    runner: asyncio.Runner, subject: Subject, operations: list[tuple[Any, ...]]
) -> None:
    check(runner, subject, operations)
