"""S9, S10 and uids: revisions increase, acknowledged writes exist, watches have no gaps, committed decisions
never change, a uid is used once, and observedGeneration never exceeds the generation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.client.contract import WatchEvent
from holdfast.model.kinds import Home, kind_of
from holdfast.model.meta import Object
from holdfast.sim.checkers import Finding, ObservedChange, ObservedCommit
from holdfast.store.contract import Committed, Txn

# Immutable spec fields by kind (S10).
IMMUTABLE_FIELDS: dict[str, tuple[str, ...]] = {
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
    """Checker of one cell."""

    def __init__(self, cell: str) -> None:
        self._cell = cell
        self._last = 0
        self._written: dict[int, str] = {}
        self._by_kind: dict[str, list[int]] = {}
        self._uids: dict[str, set[str]] = {}

    def check_revisions(self, txn: Txn, committed: Committed) -> Iterator[Finding]:
        for write, revision in zip(txn.writes, committed.revisions, strict=True):
            if revision <= self._last:
                yield "S9", f"revision {revision} came after {self._last}", (write.key,)
            self._last = revision
            self._written[revision] = write.key

    def check(self, commit: ObservedCommit, revisions: Sequence[int]) -> Iterator[Finding]:
        for change, revision in zip(commit.changes, revisions, strict=True):
            self._by_kind.setdefault(change.kind.name, []).append(revision)
            old, new = change.old, change.new
            if new is None:
                continue
            if old is None or old.metadata.uid != new.metadata.uid:
                yield from self._check_created(change)
                continue
            yield from self._generation(change)
            if change.kind.name in IMMUTABLE_FIELDS:
                yield from _decided(change)

    def _check_created(self, change: ObservedChange) -> Iterator[Finding]:
        """A name may be reused, a uid may not. Copies of global objects have the uid of the original."""
        uid = change.new.uid
        mirrored = self._cell != "global" and change.kind.home.value == "global"
        observed = self._uids.setdefault(change.key, set())
        if change.old is not None and not mirrored:
            yield "identity", f"{change.key} was replaced by another object before its deletion", (change.key,)
        if uid in observed and not mirrored:
            yield "identity", f"{change.key} was created again with its old uid {uid}", (change.key,)
        observed.add(uid)
        if observed_generation(change.new) > change.new.metadata.generation:
            yield (
                "observedGeneration",
                f"{change.key} has observed {observed_generation(change.new)} at creation",
                (change.key,),
            )

    def _generation(self, change: ObservedChange) -> Iterator[Finding]:
        now, before = change.new.metadata.generation, change.old.metadata.generation
        observed, had_seen = observed_generation(change.new), observed_generation(change.old)
        if observed > now:
            yield "observedGeneration", f"{change.key} observed {observed} of generation {now}", (change.key,)
        if observed < had_seen and (self._cell == "global" or change.kind.home is not Home.GLOBAL):
            yield "observedGeneration", f"{change.key} decreased from {had_seen} to {observed}", (change.key,)
        if now < before:
            yield "observedGeneration", f"{change.key} generation decreased from {before} to {now}", (change.key,)

    def acknowledged(self, items: Sequence[Object | None]) -> Iterator[Finding]:
        """An acknowledged object must be on disk."""
        for item in items:
            if item is None or not item.revision:
                continue
            kind = kind_of(item)
            if not kind.ephemeral and item.revision not in self._written:
                key = kind.store_key(item.metadata.namespace, item.metadata.name)
                yield "S9", f"{key} was acknowledged at revision {item.revision}, which was not committed", (key,)

    def watched(self, kind: str, after: int, batch: Sequence[WatchEvent[Any]]) -> Iterator[Finding]:
        """A watch of a whole kind delivers every change exactly once, in order."""
        revisions = [observed.revision for observed in batch if observed.object is not None]
        if not revisions:
            return
        known = self._by_kind.get(kind, [])
        expected = known[bisect_right(known, after) : bisect_right(known, revisions[-1])]
        if revisions != expected:
            yield "S9", f"a watch of {kind} after {after} delivered {revisions[:20]}, expected {expected[:20]}", ()


def _decided(change: ObservedChange) -> Iterator[Finding]:
    old, new = change.old.spec, change.new.spec
    if old == new:
        return
    moved = [name for name in IMMUTABLE_FIELDS[change.kind.name] if getattr(old, name) != getattr(new, name)]
    if change.kind.name == "Reservation" and old.victims and not new.victims:
        moved = [name for name in moved if name != "devices"]
    if moved:
        yield "S10", f"{change.key} changed immutable fields: {', '.join(moved)}", (change.key,)


def observed_generation(item: Any) -> int:
    return int(getattr(getattr(item, "status", None), "observed_generation", 0))
