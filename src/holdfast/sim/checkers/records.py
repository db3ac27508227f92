"""S9, S10 and the manners of records: revisions rise, acknowledged writes are there, watches have no gaps, what was
decided stays decided, an identity is used once, and nobody reports about a generation that does not exist.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.client.contract import Seen
from holdfast.model.kinds import Home, kind_of
from holdfast.model.meta import Object
from holdfast.sim.checkers import Changed, Commit, Found
from holdfast.store.contract import Committed, Txn

# What a commit decided for good (S10): the fields of a spec that never change while the object exists.
DECIDED: dict[str, tuple[str, ...]] = {
    "Binding": (
        "intent",
        "node",
        "replica",
        "devices",
        "ports",
        "resources",
        "policy_revision",
        "decision",
        "template",
    ),
    "Reservation": ("intent", "node", "replica", "policy_revision", "resources"),
    "Decision": ("policy_revision", "snapshot_revision", "entries", "seed"),
    "PolicyRevision": ("policy", "rules"),
    "Replica": ("workload_uid", "ordinal", "revision", "template", "placement", "exclusive"),
}


class RecordsChecker:
    """One cell's."""

    def __init__(self, cell: str) -> None:
        self._cell = cell
        self._last = 0
        self._written: dict[int, str] = {}
        self._by_kind: dict[str, list[int]] = {}
        self._uids: dict[str, set[str]] = {}

    def revisions(self, txn: Txn, committed: Committed) -> Iterator[Found]:
        for write, revision in zip(txn.writes, committed.revisions, strict=True):
            if revision <= self._last:
                yield "S9", f"revision {revision} came after {self._last}", (write.key,)
            self._last = revision
            self._written[revision] = write.key

    def check(self, commit: Commit, revisions: Sequence[int]) -> Iterator[Found]:
        for change, revision in zip(commit.changed, revisions, strict=True):
            self._by_kind.setdefault(change.kind.name, []).append(revision)
            old, new = change.old, change.new
            if new is None:
                continue
            if old is None or old.metadata.uid != new.metadata.uid:
                yield from self._born(change)
                continue
            yield from self._generation(change)
            if change.kind.name in DECIDED:
                yield from _decided(change)

    def _born(self, change: Changed) -> Iterator[Found]:
        """A name may come back; the identity behind it may not. Copies of global objects share their original's."""
        uid = change.new.uid
        mirrored = self._cell != "global" and change.kind.home.value == "global"
        seen = self._uids.setdefault(change.key, set())
        if change.old is not None and not mirrored:
            yield "identity", f"{change.key} was replaced by another of that name before it was gone", (change.key,)
        if uid in seen and not mirrored:
            yield "identity", f"{change.key} came back with the uid {uid} it had before", (change.key,)
        seen.add(uid)
        if observed(change.new) > change.new.metadata.generation:
            yield "observedGeneration", f"{change.key} observed {observed(change.new)} at its birth", (change.key,)

    def _generation(self, change: Changed) -> Iterator[Found]:
        now, before = change.new.metadata.generation, change.old.metadata.generation
        seen, had_seen = observed(change.new), observed(change.old)
        if seen > now:
            yield "observedGeneration", f"{change.key} observed {seen} of {now}", (change.key,)
        if seen < had_seen and (self._cell == "global" or change.kind.home is not Home.GLOBAL):
            yield "observedGeneration", f"{change.key} went back from {had_seen} to {seen}", (change.key,)
        if now < before:
            yield "observedGeneration", f"{change.key} went from generation {before} to {now}", (change.key,)

    def acknowledged(self, items: Sequence[Object | None]) -> Iterator[Found]:
        """Whatever a caller was told is stored must be on the disk."""
        for item in items:
            if item is None or not item.revision:
                continue
            kind = kind_of(item)
            if not kind.ephemeral and item.revision not in self._written:
                key = kind.store_key(item.metadata.namespace, item.metadata.name)
                yield "S9", f"{key} was acknowledged at {item.revision}, which no commit wrote", (key,)

    def watched(self, kind: str, after: int, batch: Sequence[Seen[Any]]) -> Iterator[Found]:
        """A watch of a whole kind: every change of it, in order, none left out and none twice."""
        told = [seen.revision for seen in batch if seen.object is not None]
        if not told:
            return
        known = self._by_kind.get(kind, [])
        expected = known[bisect_right(known, after) : bisect_right(known, told[-1])]
        if told != expected:
            yield "S9", f"a watch of {kind} after {after} was told of {told[:20]}, not of {expected[:20]}", ()


def _decided(change: Changed) -> Iterator[Found]:
    old, new = change.old.spec, change.new.spec
    if old == new:
        return
    moved = [name for name in DECIDED[change.kind.name] if getattr(old, name) != getattr(new, name)]
    if change.kind.name == "Reservation" and old.victims and not new.victims:
        moved = [name for name in moved if name != "devices"]
    if moved:
        yield "S10", f"{change.key} was committed with another {', '.join(moved)}", (change.key,)


def observed(item: Any) -> int:
    return int(getattr(getattr(item, "status", None), "observed_generation", 0))
