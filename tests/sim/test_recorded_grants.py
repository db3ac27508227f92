"""Limits of a region against the recorded Grants, across a real restore of the global cell's store."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.factories import meta, region

from holdfast.cell import storage
from holdfast.cell.storage import StoreLocation
from holdfast.gate.audit import AuditEntry, commit_record
from holdfast.link.restore_handshake import GLOBAL_INCARNATION_TERM
from holdfast.model import codec
from holdfast.model.election_term import Term, TermSpec
from holdfast.model.grant_copy import GrantCopy, GrantCopySpec
from holdfast.model.kinds import kind_of
from holdfast.model.meta import Object
from holdfast.model.principal import controller
from holdfast.model.quota import Grant, GrantSpec, Quota, QuotaSpec, grant_name
from holdfast.sim.history_verdict import HistoryVerdict
from holdfast.sim.recorded_disruption import CLOCK_SKEW_MAX_S
from holdfast.sim.recorded_history import check_platform
from holdfast.store.contract import Put, Remove, Txn
from holdfast.store.sqlite import SqliteStore

REGION = region("us-east")
TENANT = "drill"
BEGAN_S = 1_800_000_000.0
RESTORED_S = 1000.0
"""Seconds after the beginning at which the global cell is restored."""


def quota() -> Quota:
    return Quota(metadata=meta("quota", TENANT), spec=QuotaSpec(hard={"cpu": "2"}))


def grant(epoch: int, cpu: str, uid: str = "first") -> Grant:
    named = meta(grant_name("us-east"), TENANT, uid=uid)
    return Grant(metadata=named, spec=GrantSpec(region="us-east", limit={"cpu": cpu}, epoch=epoch))


def limit(epoch: int, cpu: str) -> GrantCopy:
    return GrantCopy(metadata=meta("normal", TENANT, uid="copy"), spec=GrantCopySpec(limit={"cpu": cpu}, epoch=epoch))


def follows(incarnation: int) -> Term:
    """The region's record of the global cell's incarnation."""
    named = meta(GLOBAL_INCARNATION_TERM, uid="incarnation")
    return Term(metadata=named, spec=TermSpec(holder=f"{REGION.uid} {incarnation}"))


class RecordedPlatform:
    """Stores of a global cell and a region, written past the gate, with audit records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[tuple[str, str], int] = {}

    def place(self, cell: str) -> StoreLocation:
        return StoreLocation(cell=cell, state=self.folder / "cells" / cell)

    async def write(self, cell: str, at_s: float, *items: Object, delete: bool = False) -> None:
        self.place(cell).state.mkdir(parents=True, exist_ok=True)
        store = SqliteStore(self.place(cell).file)
        try:
            for item in items:
                kind, named = kind_of(item), item.metadata
                key = kind.store_key(named.namespace, named.name)
                before = self._written.get((cell, key), 0)
                verb = "delete" if delete else "update" if before else "create"
                entry = AuditEntry(verb, kind.name, named.name, named.namespace, named.uid, before=before)
                record = commit_record(controller("grants", cell=cell), BEGAN_S + at_s, verb, (entry,))
                write = Remove(key) if delete else Put(key, codec.encode(item), item)
                committed = await store.commit(Txn(writes=(write,), appends=(record,)))
                self._written[cell, key] = 0 if delete else committed.revision
        finally:
            await store.close()

    async def restore_global(self) -> int:
        """Loses the global store and restores it from a backup of its present content. Returns the incarnation."""
        saved = self.folder / "saved"
        await storage.back_up(self.place("global"), saved)
        incarnation = await storage.restore(self.place("global"), saved, replace=True)
        store = SqliteStore(self.place("global").file)
        try:
            entries = (await store.range("")).entries
        finally:
            await store.close()
        self._written |= {("global", entry.key): entry.revision for entry in entries}
        return incarnation

    def verdict(self) -> HistoryVerdict:
        return check_platform(self.folder)

    def quota_violations(self) -> list[str]:
        return [violation.message for violation in self.verdict().violations if violation.invariant == "S3"]


@pytest.fixture
async def platform(tmp_path: Path) -> RecordedPlatform:
    """Its tenant had a Grant of 1500m at epoch 1, which no history records after the restore."""
    recorded = RecordedPlatform(tmp_path)
    await recorded.write("global", 1.0, REGION, quota(), grant(1, "1500m"))
    await recorded.write("us-east", 2.0, follows(0), limit(1, "1500m"))
    await recorded.write("us-east", 3.0, limit(1, "0"))
    await recorded.write("global", 4.0, grant(1, "1500m"), delete=True)
    return recorded


async def restored(platform: RecordedPlatform) -> int:
    """Restores the global cell, which then grants 500m to the tenant, again at epoch 1."""
    incarnation = await platform.restore_global()
    await platform.write("global", RESTORED_S, grant(1, "500m", uid="second"))
    return incarnation


def after_restore(seconds: float = 1.0) -> float:
    return RESTORED_S + CLOCK_SKEW_MAX_S + seconds


async def test_limit_of_a_grant_from_before_the_restore_is_no_violation(platform: RecordedPlatform) -> None:
    incarnation = await restored(platform)
    await platform.write("us-east", after_restore(), follows(incarnation), limit(1, "500m"))
    assert platform.quota_violations() == []
    assert "us-east: 2 limits against grants that are older than the global cell's history" in platform.verdict().gaps


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (limit(1, "1500m"), "us-east has a limit of 1500m cpu for tenant drill (granted 500m)"),
        (limit(7, "100m"), "us-east has a limit of 100m cpu for tenant drill (granted 0)"),
    ],
    ids=["above the grant", "without a grant of its epoch"],
)
async def test_limit_above_its_grant_after_the_restore_violates_s3(
    platform: RecordedPlatform, raised: GrantCopy, message: str
) -> None:
    incarnation = await restored(platform)
    await platform.write("us-east", after_restore(), follows(incarnation), raised)
    assert platform.quota_violations() == [message]


async def test_grants_above_the_quota_after_the_restore_violate_s3(platform: RecordedPlatform) -> None:
    await restored(platform)
    await platform.write("global", after_restore(), grant(2, "2500m", uid="second"))
    assert platform.quota_violations() == [
        "/grants/drill/us-east.normal raises cpu: grants exceed the quota (quota 2, granted 2500m)"
    ]


async def test_limit_above_its_grant_violates_s3_without_a_restore(platform: RecordedPlatform) -> None:
    await platform.write("global", 5.0, grant(1, "500m", uid="second"))
    await platform.write("us-east", 6.0, limit(2, "500m"))
    assert platform.quota_violations() == ["us-east has a limit of 500m cpu for tenant drill (granted 0)"]


async def test_limit_from_before_a_compaction_is_no_violation(platform: RecordedPlatform) -> None:
    store = SqliteStore(platform.place("global").file)
    try:
        await store.compact(await store.newest_revision())
    finally:
        await store.close()
    await platform.write("global", RESTORED_S, grant(1, "500m", uid="second"))
    assert platform.quota_violations() == []
    await platform.write("us-east", after_restore(), limit(1, "600m"))
    assert platform.quota_violations() == ["us-east has a limit of 600m cpu for tenant drill (granted 500m)"]
